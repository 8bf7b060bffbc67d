"""Schedules: functions that are called at set times, each time by one of many processes."""

from intervalq.schedules._handle import ScheduleInfo, ScheduleOptions, Schedules
from intervalq.schedules._occurrence import Occurrence

__all__ = ["Occurrence", "ScheduleInfo", "ScheduleOptions", "Schedules"]
