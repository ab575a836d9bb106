"""Search for the set-up of a job that takes the least time on a fabric, with the clock that every row is made with."""
