"""torchtitan's own trainer and debug model on CPUs, for torchrun: STEPS FOLDER DATA TOKENIZER.

torchtitan expects an accelerator. What CPUs, gloo and torch 2.13 do not have is stood in for before it is imported.
"""

import json
import os
import sys
from types import SimpleNamespace

import torch
import torch._utils
import torch.distributed

torch._utils._get_available_device_type = lambda: "cpu"
ANSWERS = {
    "get_device_name": "cpu",
    "current_device": 0,
    "get_device_properties": SimpleNamespace(total_memory=1),
    "memory_stats": {},
    "empty_cache": None,
    "reset_peak_memory_stats": None,
}
for name, answer in ANSWERS.items():
    setattr(torch.cpu, name, lambda *_, answer=answer: answer)
if not hasattr(torch.distributed, "set_timeout"):
    torch.distributed.set_timeout = lambda timeout, group: None

from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import TrainingConfig, llama3_debugmodel  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

import midepoch as me  # noqa: E402
from midepoch.integrations.torchtitan import LoaderDataLoader  # noqa: E402

IS_0_3 = hasattr(TrainingConfig, "seq_len")
LENGTH = 16
STEPS, FOLDER, DATA, TOKENIZER = sys.argv[1:]


def as_titan(packs):
    tokens = torch.stack([torch.as_tensor(pack["tokens"]) for pack in packs])
    labels = torch.roll(tokens, -1, 1)
    if IS_0_3:
        return {"input": tokens}, labels
    positions = torch.cat([torch.as_tensor(pack["position_ids"]).long() for pack in packs])
    return {"input": tokens.flatten(), "positions": positions}, labels.flatten()


def make_loader(*, dp_world_size, dp_rank, **given):
    packs = me.read(DATA).shuffle(1).pack(LENGTH, column="tokens", pad=0).survey().lanes(6)
    shard = packs.shard(dp_world_size=dp_world_size, dp_rank=dp_rank)
    batch_size = given["local_batch_size"] if IS_0_3 else given["num_tokens_per_batch"] // given["max_context_length"]
    return me.Loader(shard, batch_size=batch_size, collate_fn=as_titan, num_workers=2)


class Recorded(Trainer):
    """Writes which packs each step of this rank trained on, once the step is done."""

    def train_step(self, batches):
        got = []

        def noted():
            for inputs, labels in batches:
                got.extend(inputs["input"].reshape(-1, LENGTH).tolist())
                yield inputs, labels

        super().train_step(noted())
        with open(f"{FOLDER}/packs-{os.environ['RANK']}.jsonl", "a") as file:
            file.write(json.dumps([self.step, got]) + "\n")


def debug_model():
    config = llama3_debugmodel()
    training = config.training
    training.steps, training.disable_cuda_graphs, training.mixed_precision_param = int(STEPS), True, "float32"
    if IS_0_3:
        training.local_batch_size, training.seq_len = 2, LENGTH
    else:
        training.num_tokens_per_microbatch_per_dp_rank, training.max_context_length = 2 * LENGTH, LENGTH
    config.hf_assets_path, config.dump_folder = TOKENIZER, FOLDER
    config.checkpoint.enable, config.checkpoint.interval = True, 2
    config.validator.enable, config.parallelism.spmd_backend = False, "partial_dtensor"
    for _, _, parent, name in list(config.model_spec.model.traverse(FlexAttention.Config)):  # has no gradients on CPUs
        setattr(parent, name, ScaledDotProductAttention.Config())
    config.dataloader = LoaderDataLoader.Config(make_loader=make_loader, epochs=1)
    return config


if __name__ == "__main__":
    trainer = Recorded(debug_model())
    for part in trainer.model_parts:
        for module in part.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):  # the only one that gloo has
                module.set_force_sum_reduction_for_comms(True)
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()
