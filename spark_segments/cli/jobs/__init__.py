"""The maintenance jobs as commands, why a record is still here (`explain`), and the paths of the jobs' scripts."""
