"""RVT, S5-ViT and YOLOX in few kernels, for windows one after another on a GPU.

``reference.py`` defines the operations in torch, and ``kernels.py`` has the same operations as Triton kernels. The
modules in ``maxvit.py``, ``pafpn.py`` and ``yolox.py`` take the weights of a trained module and use either.
"""
