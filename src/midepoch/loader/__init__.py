"""The Loader: a torch DataLoader that knows what it has delivered.

loader    Loader: batches for a training loop, and the state of what it received
options   how a Loader reads its dataset: its batches, lanes and ranks
"""

from midepoch.loader.loader import Loader

__all__ = ["Loader"]
