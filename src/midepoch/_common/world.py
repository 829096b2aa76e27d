"""Which rank of how many this process was launched as."""

import os
import sys


def launched_rank() -> tuple[int, int] | None:
    """This process's rank and how many there are: from torch.distributed, else the launcher's environment, if any."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if rank in os.environ and world in os.environ:
            told = os.environ[rank], os.environ[world]
            if not all(map(str.isdecimal, told)) or int(told[0]) >= int(told[1]):
                raise ValueError(
                    f"{rank} is {told[0]!r} and {world} is {told[1]!r} in the environment; they must be whole numbers, "
                    f"{rank} below {world}. Start with a launcher that sets both, unset them, or pass the rank and the "
                    "number of ranks."
                )
            return int(told[0]), int(told[1])
    return None


def torch_worker() -> tuple[int, int] | None:
    """Which worker of a DataLoader this process is, and of how many; None outside of one."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return None if info is None else (info.id, info.num_workers)
