"""The folder that executed Python workers have on their PYTHONPATH; see sitecustomize.py."""
