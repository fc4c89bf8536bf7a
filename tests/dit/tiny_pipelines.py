"""Pipelines of real classes with tiny random weights, saved as users' folders are.

No model hub is needed: configurations are shrunk, tokenizers know single bytes or letters.
"""

from pathlib import Path

import diffusers as d
import torch
import transformers as t

LETTERS = [chr(code) for code in range(33, 127)]
# GPT-2's printable stand-ins for bytes: enough of them for ASCII text.
BYTES = [*LETTERS, "Ġ", "Ċ"]


def clip_tokenizer() -> t.CLIPTokenizer:
    words = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    vocab = {"<|startoftext|>": 0, "<|endoftext|>": 1, **{w: i + 2 for i, w in enumerate(words)}}
    return t.CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77)


def t5_tokenizer() -> t.T5TokenizerFast:
    pieces = ["<pad>", "</s>", "<unk>", "▁", *LETTERS]
    return t.T5TokenizerFast(vocab=[(piece, -1.0) for piece in pieces], extra_ids=0)


def qwen_tokenizer() -> t.Qwen2Tokenizer:
    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES]
    return t.Qwen2Tokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[])


def clip_encoder(width: int) -> t.CLIPTextModelWithProjection:
    config = t.CLIPTextConfig(
        vocab_size=200, hidden_size=width, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, projection_dim=width, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return t.CLIPTextModelWithProjection(config)


def t5_encoder() -> t.T5EncoderModel:
    config = t.T5Config(
        vocab_size=128, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    return t.T5EncoderModel(config)


def image_vae(scaling: float, shift: float) -> d.AutoencoderKL:
    return d.AutoencoderKL(
        block_out_channels=(4, 4, 4, 4), in_channels=3, out_channels=3, latent_channels=16,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1, norm_num_groups=1, sample_size=32, use_quant_conv=False,
        use_post_quant_conv=False, scaling_factor=scaling, shift_factor=shift,
    )  # fmt: skip


def sd3() -> d.StableDiffusion3Pipeline:
    transformer = d.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=16, out_channels=16, num_layers=2,
        attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32,
        caption_projection_dim=32, pooled_projection_dim=32, pos_embed_max_size=16,
        dual_attention_layers=(0,), qk_norm="rms_norm",
    )  # fmt: skip
    return d.StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=d.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=image_vae(1.5305, 0.0609),
        text_encoder=clip_encoder(16),
        tokenizer=clip_tokenizer(),
        text_encoder_2=clip_encoder(16),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5_encoder(),
        tokenizer_3=t5_tokenizer(),
    )


def flux(guidance_embeds: bool = True) -> d.FluxPipeline:
    transformer = d.FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=1, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=16,
        axes_dims_rope=(4, 6, 6), guidance_embeds=guidance_embeds,
    )  # fmt: skip
    text = t.CLIPTextModel(clip_encoder(16).config)
    return d.FluxPipeline(
        scheduler=d.FlowMatchEulerDiscreteScheduler(
            shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15
        ),
        vae=image_vae(0.3611, 0.1159),
        text_encoder=text,
        tokenizer=clip_tokenizer(),
        text_encoder_2=t5_encoder(),
        tokenizer_2=t5_tokenizer(),
        transformer=transformer,
    )


def schnell() -> d.FluxPipeline:
    return flux(guidance_embeds=False)


def qwen_image() -> d.QwenImagePipeline:
    text_config = {
        "vocab_size": 128, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    vision_config = {
        "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
        "out_hidden_size": 32,
    }  # fmt: skip
    text = t.Qwen2_5_VLForConditionalGeneration(
        t.Qwen2_5_VLConfig(text_config=text_config, vision_config=vision_config)
    )
    transformer = d.QwenImageTransformer2DModel(
        patch_size=2, in_channels=64, out_channels=16, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    return d.QwenImagePipeline(
        scheduler=d.FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192,
            shift_terminal=0.02, time_shift_type="exponential",
        ),
        vae=d.AutoencoderKLQwenImage(base_dim=4, z_dim=16, num_res_blocks=1),
        text_encoder=text,
        tokenizer=qwen_tokenizer(),
        transformer=transformer,
    )  # fmt: skip


def wan() -> d.WanPipeline:
    text = t.UMT5EncoderModel(
        t.UMT5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    )
    transformer = d.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=16, in_channels=16,
        out_channels=16, text_dim=32, freq_dim=32, ffn_dim=32, num_layers=2, rope_max_seq_len=64,
    )  # fmt: skip
    return d.WanPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=text,
        vae=d.AutoencoderKLWan(base_dim=4, z_dim=16, num_res_blocks=1),
        scheduler=d.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        transformer=transformer,
    )


BUILDERS = {"sd3": sd3, "flux": flux, "schnell": schnell, "qwen_image": qwen_image, "wan": wan}


def save(name: str, folder: Path) -> Path:
    """Write a tiny pipeline; its weights depend on nothing but the code above."""
    torch.manual_seed(7)
    pipe = BUILDERS[name]()
    with torch.no_grad():
        for parameter in pipe.transformer.parameters():
            # Fresh layers are nearly linear; spread them so that every input matters.
            parameter.add_(0.05 * torch.randn_like(parameter))
    pipe.save_pretrained(folder)
    return folder
