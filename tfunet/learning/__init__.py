"""Losses, scores, optimizers and learning rates."""

LOSSES = {
    "crossentropy": "tfunet.learning.losses:CrossEntropy",
    "dice": "tfunet.learning.losses:Dice",
    "dice_crossentropy": "tfunet.learning.losses:DiceCrossEntropy",
    "tversky": "tfunet.learning.losses:Tversky",
    "focal": "tfunet.learning.losses:Focal",
    "topk_crossentropy": "tfunet.learning.losses:TopKCrossEntropy",
    "dice_topk_crossentropy": "tfunet.learning.losses:DiceTopKCrossEntropy",
    "cldice": "tfunet.learning.cldice:ClDice",
}
# Losses that are means over pixels, so that tiles can add them up.
PIXEL_MEANS = ("crossentropy", "focal")
