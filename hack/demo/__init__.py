"""The demo: an elastic job on real data, a pod deleted half-way, and the model trained to the end. `python -m hack.demo
run`."""
