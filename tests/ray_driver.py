"""Run as a script: read by workers of Ray, say when batches come, and be killed."""

import sys
import time

import ray

import midepoch as me
from midepoch.integrations.ray import RayWorkers

if __name__ == "__main__":
    address, data, resource = sys.argv[1:]
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    workers = RayWorkers(num_cpus=0, resources={resource: 1})
    batches = iter(me.Loader(me.read(data), batch_size=2, num_workers=2, workers=workers))
    next(batches)
    sys.stdout.write("reads\n")
    sys.stdout.flush()
    time.sleep(600)
