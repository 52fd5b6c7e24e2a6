"""Install the package for ament; FATE itself is installed with pip, see README.md."""

from setuptools import setup

setup(
    name="fate_ros",
    version="0.1.0",
    packages=["fate_ros"],
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/fate_ros"]),
        ("share/fate_ros", ["package.xml"]),
        ("share/fate_ros/launch", ["launch/detector.launch.py"]),
    ],
    zip_safe=True,
    entry_points={"console_scripts": ["detector = fate_ros.node:main"]},
)
