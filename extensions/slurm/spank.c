/* SPANK plug-in: a task of srun enters the network namespace of its GPU in a Ringlight lab. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(ringlight, 1);

/* Called as root in each task's own process, before it becomes the user's. The variables are those of slurmd,
 * which slurmstepd inherits; the path is opened for each task, as the namespace may have been made again. */
int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av)
{
	const char *path = getenv("RINGLIGHT_NETNS"), *gpu = getenv("RINGLIGHT_GPU"), *lab = getenv("RINGLIGHT_LAB");
	uint32_t step = 0;
	if (!path)
		return 0;
	/* By this label the lab finds the task and ends it. */
	if (lab)
		spank_setenv(sp, "RINGLIGHT_LAB", lab, 1);
	/* A batch script starts its steps by srun, which finds Slurm's controller in the machine's own namespace. */
	if (spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS && step == SLURM_BATCH_SCRIPT)
		return 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET)) {
		slurm_error("ringlight: GPU %s has no idle host now, a job of Ringlight may hold it: %s: %m", gpu ? gpu : "", path);
		return -1;
	}
	close(fd);
	return 0;
}
