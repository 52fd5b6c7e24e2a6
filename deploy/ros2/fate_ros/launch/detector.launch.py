"""Start the detector on the topic of a camera: ``ros2 launch fate_ros detector.launch.py events:=/camera/events``."""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node


def generate_launch_description() -> LaunchDescription:
    """One node, with the topics as arguments."""
    topics = {"events": "/event_camera/events", "detections": "/event_camera/detections"}
    arguments = [DeclareLaunchArgument(name, default_value=topic) for name, topic in topics.items()]
    node = Node(
        package="fate_ros",
        executable="detector",
        parameters=[{"model": "fate-s-nano", "hz": 50.0, "track": True}],
        remappings=[(name, LaunchConfiguration(name)) for name in topics],
    )
    return LaunchDescription([*arguments, node])
