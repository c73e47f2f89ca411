"""Our module against transformers' deepseek_v4 on the same random weights, float32; and packed documents against the same documents alone.

transformers has no FP8 or FP4 round trips, so they are off here."""
import sys

import torch

from config import Config
from model import Net, transformers_config


def main(device, length=768):
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    c = Config(vocabulary=512, top_k=64)
    net = Net(c)
    with torch.no_grad():  # make every part matter
        for name, value in net.named().items():
            if name.endswith(("sinks", "position_bias", "base", "norm.weight", "layernorm.weight")):
                value.add_(0.4 * torch.randn_like(value))
        for name in net.buffers_:
            if name.endswith("bias"):
                net.buffers_[name] += 0.2 * torch.randn_like(net.buffers_[name])
    state = net.state()
    net.move(device)
    ids = torch.randint(0, 512, (2, length), device=device)
    off = torch.zeros((), device=device)

    def distance(a, b):
        e = (a - b).norm(dim=-1) / a.norm(dim=-1)
        return f"median {e.median():.1e} worst {e.max():.1e}"

    with torch.no_grad():
        alone = net(ids, rounding=off)[0]
        start = torch.zeros_like(ids)
        start[:, 256:] = 256
        packed = net(ids, start=start, rounding=off)[0].view(2, length, -1)[:, 256:]
        print("packed document against alone:", distance(net(ids[:, 256:], rounding=off)[0].view(2, length - 256, -1), packed))
        start[:, 256 + 44:] = 300
        packed = net(ids[:, :384], start=start[:, :384], rounding=off)[0].view(2, 384, -1)[:, 300:]
        short = torch.cat([ids[:, 300:384], ids[:, :44]], 1)
        print("short packed document against alone:", distance(net(short, rounding=off)[0].view(2, 128, -1)[:, :84], packed))
        print("training's selection against evaluation's:", distance(alone, net(ids, rounding=off, train=True)[0]))
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4ForCausalLM
    hf = DeepseekV4ForCausalLM(transformers_config(c, attn_implementation="eager")).float().eval().to(device)
    hf.load_state_dict(state, strict=True)
    with torch.no_grad():
        theirs = hf(ids).logits.view(-1, 512)
    print("against transformers:", distance(theirs, alone), f"argmax equal {(theirs.argmax(-1) == alone.argmax(-1)).float().mean():.4f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
