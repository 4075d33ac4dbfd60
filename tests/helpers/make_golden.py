"""Writes golden.json: training steps of the same networks by PyTorch, in double precision.

    python -m tests.helpers.make_golden    (needs torch and torchvision; made with 2.15.0, 0.29.2)

Blocks, batch norm, attention, losses, box matching and the optimizer are PyTorch's and
torchvision's own; put together here are CIFAR's shortcuts, SSD's extra layers and heads, and the
Transformer's ends. No code of the project runs, except for the table of default boxes.
"""

import importlib.metadata
import json
import pathlib
import re

import numpy as np
import torch
import torchvision
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torchvision.models.detection import _utils, ssd
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
from torchvision.models.vision_transformer import VisionTransformer
from torchvision.ops import box_iou

from models.ssd import BOXES_PER_CELL, EXTRA_CHANNELS, default_boxes
from tests.helpers import golden

Views = dict[str, torch.Tensor]  # of PyTorch's parameters, by our names, with our axes


def add(views, name, layer, weight="kernel"):
    """A layer's weight and, if it has one, bias."""
    views[f"{name}/{weight}"] = kernel(layer.weight) if weight == "kernel" else layer.weight.data
    if layer.bias is not None:
        views[f"{name}/bias"] = layer.bias.data


def kernel(weight):
    """Convolutions are [H, W, I, O] here, dense layers [I, O]."""
    return weight.data.permute((2, 3, 1, 0) if weight.ndim == 4 else (1, 0))


def add_conv_norm(views, name, conv, norm):
    add(views, f"{name}/conv", conv)
    add(views, f"{name}/norm", norm, "scale")


def add_block(views, name, block):
    for number in (1, 2, 3):
        if hasattr(block, f"conv{number}"):
            conv, norm = getattr(block, f"conv{number}"), getattr(block, f"bn{number}")
            add_conv_norm(views, f"{name}/conv{number}", conv, norm)
    if isinstance(block.downsample, nn.Sequential):
        add_conv_norm(views, f"{name}/projection", *block.downsample)


def add_stages(views, stages):
    for stage, blocks in enumerate(stages):
        for number, block in enumerate(blocks):
            add_block(views, f"backbone/stages/{stage}/{number}", block)


def add_layer(views, name, attention, norms, mlp):
    """A Transformer's layer; the heads' kernels are [D, N, H] here, and [N, H, D] at the end."""
    dim, heads = attention.embed_dim, attention.num_heads
    shape = (heads, dim // heads)
    for number, part in enumerate("qkv"):
        rows = slice(number * dim, (number + 1) * dim)
        weight_DxNxH = kernel(attention.in_proj_weight[rows]).unflatten(1, shape)
        views[f"{name}/attention/{part}/kernel"] = weight_DxNxH
        if attention.in_proj_bias.requires_grad:
            bias_NxH = attention.in_proj_bias.data[rows].unflatten(0, shape)
            views[f"{name}/attention/{part}/bias"] = bias_NxH
    views[f"{name}/attention/out/kernel"] = kernel(attention.out_proj.weight).unflatten(0, shape)
    if attention.out_proj.bias.requires_grad:
        views[f"{name}/attention/out/bias"] = attention.out_proj.bias.data
    for part, norm in zip(("attention_norm", "mlp_norm"), norms, strict=True):
        add(views, f"{name}/{part}", norm, "scale")
    for part, layer in zip(("mlp_in", "mlp_out"), mlp, strict=True):
        add(views, f"{name}/{part}", layer)


def pixels(data):
    images_BxHxWxC = torch.from_numpy(data["image"]).double()
    return ((images_BxHxWxC - 127.5) / 64).permute(0, 3, 1, 2)


def by_group(network, images_BxCxHxW):
    """Ghost batch norm, by its definition: each group of examples on its own."""
    return [network(group) for group in images_BxCxHxW.split(golden.GHOST_BATCH)]


class Shortcut(nn.Module):
    """He et al. 2016, option A: every second pixel, and zero channels."""

    def __init__(self, stride, missing):
        super().__init__()
        self.stride, self.missing = stride, missing

    def forward(self, x_BxCxHxW):
        return F.pad(
            x_BxCxHxW[:, :, :: self.stride, :: self.stride], (0, 0) * 2 + (0, self.missing)
        )


def cifar10(data):
    """ResNet-8 of width 4, batch norm over the whole batch."""
    stem, norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
    blocks = [
        BasicBlock(4, 4),
        BasicBlock(4, 8, 2, Shortcut(2, 4)),
        BasicBlock(8, 16, 2, Shortcut(2, 8)),
    ]
    network = nn.Sequential(stem, norm, nn.ReLU(), *blocks)
    network += nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    network.double()
    views = {}
    add_conv_norm(views, "stem", stem, norm)
    for number, block in enumerate(blocks):
        add_block(views, f"blocks/{number}", block)
    add(views, "head", network[-1])
    labels_B = torch.from_numpy(data["label"]).long()
    return network, views, lambda: F.cross_entropy(network(pixels(data)), labels_B)


def imagenet(data):
    """torchvision's ResNet with one bottleneck block a stage, ghost batches, label smoothing."""
    network, width = ResNet(Bottleneck, [1, 1, 1, 1]), golden.IMAGENET_WIDTH
    network.conv1, network.bn1 = stem(width)
    stages = narrow_stages(Bottleneck, width, (1, 2, 2, 2))
    network.layer1, network.layer2, network.layer3, network.layer4 = stages
    network.fc = nn.Linear(8 * width * Bottleneck.expansion, golden.IMAGENET_CLASSES)
    network.double()
    views = {}
    add_conv_norm(views, "backbone/stem", network.conv1, network.bn1)
    add_stages(views, stages)
    add(views, "head", network.fc)
    labels_B = torch.from_numpy(data["label"]).long()

    def loss():
        logits_BxK = torch.cat(by_group(network, pixels(data)))
        return F.cross_entropy(logits_BxK, labels_B, label_smoothing=golden.LABEL_SMOOTHING)

    return network, views, loss


def stem(width):
    conv = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
    return conv, nn.BatchNorm2d(width)


def narrow_stages(block, width, strides):
    """torchvision's stages, of one block each, with `width` channels for its 64."""
    network = ResNet(block, [1, 1, 1, 1])
    network.inplanes = width
    return [
        network._make_layer(block, width * 2**stage, 1, stride=stride)
        for stage, stride in enumerate(strides)
    ]


def transformer(data):
    """PyTorch's encoder layers with a causal mask; embedding and logits share their weights."""
    dim, heads = golden.TRANSFORMER["dim"], golden.TRANSFORMER["heads"]
    embed = nn.Embedding(golden.VOCABULARY, dim)
    options = {"dropout": 0.0, "layer_norm_eps": 1e-6, "batch_first": True, "norm_first": True}
    layers = [
        nn.TransformerEncoderLayer(dim, heads, golden.TRANSFORMER["mlp_dim"], **options)
        for _ in range(golden.TRANSFORMER["layers"])
    ]
    final_norm = nn.LayerNorm(dim, eps=1e-6)
    network = nn.ModuleList([embed, *layers, final_norm]).double()
    embed.bias = None
    views = {}
    add(views, "embed", embed, "embedding")
    for number, layer in enumerate(layers):
        for bias in (layer.self_attn.in_proj_bias, layer.self_attn.out_proj.bias):
            bias.requires_grad_(False).zero_()  # ours has none
        norms, mlp = (layer.norm1, layer.norm2), (layer.linear1, layer.linear2)
        add_layer(views, f"layers/{number}", layer.self_attn, norms, mlp)
    add(views, "final_norm", final_norm, "scale")
    tokens_BxT = torch.from_numpy(data["tokens"]).long()
    length = tokens_BxT.shape[1] - 1
    mask_LxL = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.double)
    frequency_F = 10_000.0 ** (-np.arange(0, dim, 2) / dim)
    angle_LxF = torch.from_numpy(np.arange(length)[:, None] * frequency_F)
    positions_LxD = torch.cat([angle_LxF.sin(), angle_LxF.cos()], 1)

    def loss():
        x_BxLxD = embed(tokens_BxT[:, :-1]) * dim**0.5 + positions_LxD
        for layer in layers:
            x_BxLxD = layer(x_BxLxD, src_mask=mask_LxL, is_causal=True)
        logits_BxLxV = F.linear(final_norm(x_BxLxD), embed.weight)
        return F.cross_entropy(
            logits_BxLxV.flatten(0, 1), tokens_BxT[:, 1:].flatten(), ignore_index=0
        )

    return network, views, loss


def vit(data):
    """torchvision's Vision Transformer, whose layers have biases and the exact gelu."""
    sizes = golden.VIT
    network = VisionTransformer(
        image_size=golden.VIT_SIZE,
        patch_size=sizes["patch_size"],
        num_layers=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        hidden_dim=sizes["model_dim"],
        mlp_dim=sizes["mlp_dim"],
        num_classes=10,
    ).double()
    views = {}
    add(views, "patches", network.conv_proj)
    views["class_token"] = network.class_token.data[0, 0]
    views["positions"] = network.encoder.pos_embedding.data[0]
    for number, layer in enumerate(network.encoder.layers):
        norms, mlp = (layer.ln_1, layer.ln_2), (layer.mlp[0], layer.mlp[3])
        add_layer(views, f"layers/{number}", layer.self_attention, norms, mlp)
    add(views, "final_norm", network.encoder.ln, "scale")
    add(views, "head", network.heads.head)
    labels_B = torch.from_numpy(data["label"]).long()
    return network, views, lambda: F.cross_entropy(network(pixels(data)), labels_B)


class Detector(nn.Module):
    """A block of torchvision's for each of three stages, then SSD's extra layers and heads."""

    def __init__(self, width, classes):
        super().__init__()
        self.stem, self.norm = stem(width)
        self.stages = nn.ModuleList(narrow_stages(BasicBlock, width, (1, 2, 1)))
        channels, self.extras = [4 * width], nn.ModuleList()
        for middle, last in EXTRA_CHANNELS:  # every map here is small, so all have stride 2
            first = nn.Conv2d(channels[-1], middle * width, 1)
            second = nn.Conv2d(middle * width, last * width, 3, stride=2, padding=1)
            self.extras.append(nn.Sequential(first, nn.ReLU(), second, nn.ReLU()))
            channels.append(last * width)
        self.heads = nn.ModuleList(
            nn.ModuleList(
                nn.Conv2d(features, boxes * outputs, 3, padding=1)
                for features, boxes in zip(channels, BOXES_PER_CELL, strict=True)
            )
            for outputs in (4, classes + 1)
        )

    def forward(self, images_BxCxHxW):
        x_BxCxHxW = F.max_pool2d(F.relu(self.norm(self.stem(images_BxCxHxW))), 3, 2, 1)
        for stage in self.stages:
            x_BxCxHxW = stage(x_BxCxHxW)
        maps = [x_BxCxHxW]
        for extra in self.extras:
            maps.append(extra(maps[-1]))
        return [
            torch.cat(
                [
                    head(x_BxCxHxW).permute(0, 2, 3, 1).reshape(len(x_BxCxHxW), -1, outputs)
                    for head, x_BxCxHxW in zip(heads, maps, strict=True)
                ],
                1,
            )
            for heads, outputs in zip(self.heads, (4, golden.DETECTION_CLASSES + 1), strict=True)
        ]


class Multibox(ssd.SSD):
    """torchvision's loss and matching, without the rest of its detector."""

    def __init__(self):
        nn.Module.__init__(self)
        self.box_coder = _utils.BoxCoder(weights=(10.0, 10.0, 5.0, 5.0))
        self.proposal_matcher = _utils.SSDMatcher(0.5)
        self.neg_to_pos_ratio = 3.0

    def loss(self, targets, offsets_BxNx4, logits_BxNxK1, default_Nx4):
        outputs = {"bbox_regression": offsets_BxNx4, "cls_logits": logits_BxNxK1}
        matched = [
            self.proposal_matcher(box_iou(target["boxes"], default_Nx4))
            if len(target["boxes"])
            else torch.full((len(default_Nx4),), -1)
            for target in targets
        ]
        losses = self.compute_loss(targets, outputs, [default_Nx4] * len(targets), matched)
        return losses["bbox_regression"] + losses["classification"]


def detection(data):
    network = Detector(golden.DETECTION_WIDTH, golden.DETECTION_CLASSES).double()
    views = {}
    add_conv_norm(views, "backbone/stem", network.stem, network.norm)
    add_stages(views, network.stages)
    for number, extra in enumerate(network.extras):
        add(views, f"extras/{number}/conv1", extra[0])
        add(views, f"extras/{number}/conv2", extra[2])
    for name, heads in zip(("box_heads", "class_heads"), network.heads, strict=True):
        for number, head in enumerate(heads):
            add(views, f"{name}/{number}", head)
    x_N, y_N, w_N, h_N = torch.from_numpy(default_boxes(golden.DETECTION_SIZE)).double().T
    default_Nx4 = torch.stack([x_N - w_N / 2, y_N - h_N / 2, x_N + w_N / 2, y_N + h_N / 2], 1)
    targets = []
    for boxes_Mx4, labels_M in zip(data["boxes"], data["labels"], strict=True):
        boxes = torch.from_numpy(boxes_Mx4[labels_M >= 0][:, [1, 0, 3, 2]]).double()
        labels = torch.from_numpy(labels_M[labels_M >= 0]).long() + 1  # 0 is the background
        targets.append({"boxes": boxes, "labels": labels})

    def loss():
        parts = zip(*by_group(network, pixels(data)), strict=True)
        return Multibox().loss(targets, *map(torch.cat, parts), default_Nx4)

    return network, views, loss


def steps(make, name):
    """Losses of the first steps, and the first update of every parameter (summarized)."""
    network, views, loss = make(golden.batch(name))
    for parameter, view in views.items():
        view.copy_(torch.from_numpy(golden.parameter(parameter, tuple(view.shape))))
    before = {parameter: view.numpy().copy() for parameter, view in views.items()}
    trained = [p for p in network.parameters() if p.requires_grad]
    # Weight decay acts on kernels alone: what has two axes or more, and is no embedding.
    embeddings = {m.weight for m in network.modules() if isinstance(m, nn.Embedding)}
    if isinstance(network, VisionTransformer):
        embeddings |= {network.class_token, network.encoder.pos_embedding}
    kernels = {p for p in trained if p.ndim > 1} - embeddings
    others = set(trained) - kernels
    decay = {"params": list(kernels), "weight_decay": golden.WEIGHT_DECAY}
    groups = [decay, {"params": list(others)}]
    optimizer = torch.optim.SGD(
        groups, lr=golden.LEARNING_RATE, momentum=golden.MOMENTUM, nesterov=True
    )
    losses, updates = [], {}
    for step in range(golden.STEPS):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.item())
        if step == 0:
            updates = {k: golden.summary(k, before[k] - views[k].numpy()) for k in before}
    assert sum(value.size for value in before.values()) == sum(p.numel() for p in trained)
    return {"losses": losses, "updates": updates}


def main():
    makers = {"cifar10": cifar10, "imagenet": imagenet, "transformer": transformer}
    makers |= {"vit": vit, "ssd": detection}
    versions = {name: importlib.metadata.version(name) for name in ("torch", "torchvision")}
    found = {"made_by": f"tests/helpers/make_golden.py with {versions}"}
    found |= {name: steps(make, name) for name, make in makers.items()}
    text = json.dumps(found, indent=1)
    text = re.sub(r"(?<=\[|,)\s+(?=-?\d)|(?<=\d)\s+(?=\])", " ", text)  # a list a line
    pathlib.Path(__file__).with_name("golden.json").write_text(text + "\n")


if __name__ == "__main__":
    assert torchvision  # registers the operators
    main()
