"""A training step on a CPU adds up gradients in the order of its graph, so that runs are equal.

That such sums have the same bits is tested in tests/graph/test_gradient_sums.py.
"""

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.loop import run
from tfunet.single_device import SingleDevice

SOURCE = """
import keras
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

class Net(keras.Model):
    def train_step(self, data):
        attributes = context.context().function_call_options.as_attrs()
        config = config_pb2.ConfigProto.FromString(attributes["config_proto"])
        print("memory optimizer:", config.graph_options.rewrite_options.memory_optimization)
        return super().train_step(data)

def build(image_shape, num_classes):
    image = keras.Input(image_shape)
    return Net(image, keras.layers.Conv2D(num_classes, 3, padding="same")(image))
"""
OFF = 1  # RewriterConfig.NO_MEM_OPT


def test_the_memory_optimizer_is_off(tmp_path, capsys):
    (tmp_path / "net.py").write_text(SOURCE)
    config = RunConfig(
        model=f"{tmp_path}/net.py:build",
        data="cells",
        data_options={"num_cases": 4, "size": 32},
        replica_batch=1,
        steps=1,
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("memory")][-1] == f"memory optimizer: {OFF}"
