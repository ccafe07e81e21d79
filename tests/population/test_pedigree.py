from tfunet.population.pedigree import Played, ancestors, arrows, origins


def rows(*givers):
    return tuple(
        Played(
            round=round,
            step=round,
            partner=None,
            own_score=0.0,
            partner_score=None,
            model_of=giver,
            reason="",
            learning_rate=0.1,
            hyperparameters={},
            training_seconds=1.0,
            round_seconds=1.0,
            waited_seconds=0.0,
        )
        for round, giver in enumerate(givers, 1)
    )


def test_a_model_descends_through_all_that_had_it():
    #          round 1  round 2
    pedigree = {0: rows(1, 2), 1: rows(1, 0), 2: rows(2, 2), 3: rows(3)}
    assert (1, 1, 0) in list(arrows(pedigree))
    # After round 1 trainer 0 has the model of 1, which trainer 1 gets back in round 2. Trainer 3
    # died after the first round.
    assert ancestors(pedigree) == {0: 2, 1: 1, 2: 2, 3: 3}
    begun_by = origins(pedigree)
    assert [begun_by[round, 0] for round in (0, 1, 2)] == [0, 1, 2]


def test_an_exchange_in_both_directions_swaps_models():
    assert ancestors({0: rows(1), 1: rows(0)}) == {0: 1, 1: 0}
    assert ancestors({}) == {}
