"""Events in ROS bags."""
