"""How far apart the attention costs of ranks are in a step, with and without balance: ``python -m benchmarks.balance``.

Nothing is read: packs are planned from the lengths, and shared as a Loader shares them. Lengths are lognormal, and one
document in a hundred has 32,768 tokens. A micro-batch is one pack.
"""

import argparse

import numpy as np

from benchmarks.measure import Figure, figure, show
from midepoch._common.hashing import I64
from midepoch.delivery.session import share_evenly
from midepoch.stages.pack.windows import pack

LENGTH, WINDOW, GLOBAL_BATCH, RANKS = 32_768, 4096, 64, (2, 4, 8)


def document_lengths(documents: int) -> I64:
    """Lengths of which the median is 600."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(np.log(600), 1.2, documents), 1, LENGTH).astype(np.int64)
    lengths[generator.random(documents) < 0.01] = LENGTH
    return lengths


def pack_costs(lengths: I64) -> I64:
    """The cost of each pack: the sum of the squares of the lengths of its documents."""
    costs = []
    for at in range(0, len(lengths), WINDOW):
        packs = pack(lengths[at : at + WINDOW], length=LENGTH, strategy="best_fit", overlong="drop")
        costs.append(np.add.reduceat((packs.stops - packs.starts) ** 2, packs.bounds[:-1]))
    found = np.concatenate(costs)
    return np.random.default_rng(1).permutation(found)  # a step has packs of many lanes


def spreads(costs: I64, ranks: int) -> list[Figure]:
    """How far ranks are apart, as a mean over steps: the cost of the rank that the others wait for, and the range."""
    steps = costs[: len(costs) // GLOBAL_BATCH * GLOBAL_BATCH].reshape(-1, GLOBAL_BATCH)
    in_turn = np.stack([steps[:, rank::ranks].sum(axis=1) for rank in range(ranks)], axis=1)
    shares = [share_evenly(step.tolist(), ranks) for step in steps]
    balanced = np.array([[step[share].sum() for share in of] for step, of in zip(steps, shares, strict=True)])
    figures = []
    for name, sums in [("in turn", in_turn), ("balanced", balanced)]:
        mean = sums.mean(axis=1)
        waited_for, apart = sums.max(axis=1) / mean, (sums.max(axis=1) - sums.min(axis=1)) / mean
        figures += [
            figure(f"{ranks} ranks, {name}: dearest rank / mean, mean of steps", float(waited_for.mean())),
            figure(f"{ranks} ranks, {name}: (dearest - cheapest) / mean, mean of steps", float(apart.mean())),
            figure(f"{ranks} ranks, {name}: (dearest - cheapest) / mean, worst step", float(apart.max())),
        ]
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    costs = pack_costs(document_lengths(parser.parse_args().documents))
    show(
        f"Attention cost of ranks, {len(costs):,} packs, {GLOBAL_BATCH} a step",
        [one for ranks in RANKS for one in spreads(costs, ranks)],
    )


if __name__ == "__main__":
    main()
