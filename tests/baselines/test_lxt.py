"""AttnLRP against the package of its authors, ``lxt``, which replaces forward methods: in processes of their own.

``make test-long`` installs it without its dependencies.
"""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = [pytest.mark.long, pytest.mark.skipif(find_spec("lxt") is None, reason="lxt is not installed")]

START = """
import json, sys, types
from importlib.util import find_spec
import torch, vitshap
from torch import nn
from tests.models import nets

# Without the package's own __init__, which imports language models that newer versions of transformers have changed.
package = types.ModuleType("lxt.efficient")
package.__path__ = [find_spec("lxt").submodule_search_locations[0] + "/efficient"]
sys.modules["lxt.efficient"] = package
from lxt.efficient import patches


def ours(net, pixels, **options):
    targets = torch.arange(nets.CLASSES).expand(len(pixels), -1)
    return vitshap.method("attnlrp", vitshap.wrap(net), **options).score_tokens(pixels, targets).scores.detach()


def theirs(net, pixels):
    maps = []
    for target in range(nets.CLASSES):
        image = pixels.clone().requires_grad_()
        output = net(image)
        getattr(output, "logits", output)[:, target].sum().backward()
        relevance = (image * image.grad).sum(1)  # [B, H, W]
        maps.append(relevance.view(len(pixels), 4, 8, 4, 8).sum((2, 4)).flatten(1))
    return torch.stack(maps, 2)
"""

CP_LRP = """
net = nets.build("torchvision ViT").double()
nn.init.zeros_(net.conv_proj.bias)  # the share of a bias is no pixel's
pixels = nets.images("torchvision ViT").double()
found = ours(net, pixels, attention="cp")
patches.patch_method(patches.non_linear_forward, nn.GELU, keep_original=True)
patches.patch_method(patches.layer_norm_forward, nn.LayerNorm)
patches.patch_method(patches.cp_multi_head_attention_forward, nn.MultiheadAttention, keep_original=True)
expected = theirs(net, pixels)
print(json.dumps(float((found - expected).abs().max() / expected.abs().max())))
"""

SOFTMAX = """
from transformers.models.vit import modeling_vit
net = nets.build("transformers ViT").double()
nn.init.zeros_(net.vit.embeddings.patch_embeddings.projection.bias)
pixels = nets.images("transformers ViT").double()
found = ours(net, pixels)
patches.patch_method(patches.layer_norm_forward, nn.LayerNorm)
for module in net.modules():
    if type(module).__name__ == "GELUActivation":
        activation = module.forward
        module.forward = lambda x, activation=activation: patches.identity_rule_implicit(activation, x)
functions = modeling_vit.ALL_ATTENTION_FUNCTIONS  # patch_attention replaces this table by a plain dictionary
functions["sdpa"] = patches.wrap_attention_forward(functions["sdpa"])
expected = theirs(net, pixels)
print(json.dumps(float((found - expected).abs().max() / expected.abs().max())))
"""


@pytest.mark.parametrize("script", [CP_LRP, SOFTMAX], ids=["CP-LRP, torchvision", "softmax rule, transformers"])
def test_maps_are_those_of_lxt(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", START + script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) < 1e-6
