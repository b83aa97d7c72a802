"""The networks the experiments train."""

from unhinge.nn.backbones.body import Classifier, Head, make_head
from unhinge.nn.backbones.build import MODELS, build_model
from unhinge.nn.backbones.convnet import ConvBody
from unhinge.nn.backbones.flops import count_flops, count_parameters
from unhinge.nn.backbones.glyphnet import GlyphBody
from unhinge.nn.backbones.resnet import BasicBlock, Bottleneck, ResNetBody, deep_body, thin_body
from unhinge.nn.backbones.timm_body import TimmBody

__all__ = [
    "MODELS",
    "build_model",
    "Classifier",
    "Head",
    "make_head",
    "count_flops",
    "count_parameters",
    "BasicBlock",
    "Bottleneck",
    "ResNetBody",
    "ConvBody",
    "GlyphBody",
    "TimmBody",
    "deep_body",
    "thin_body",
]
