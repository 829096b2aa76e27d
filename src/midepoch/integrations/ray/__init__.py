"""Ray: an executor whose calls are tasks of a cluster, and Loaders for Ray Train."""

from midepoch.integrations.ray.executor import RayExecutor

__all__ = ["RayExecutor"]
