// A program with a sigaction() of its own, which goes on to the next one by libc's other name: as Erlang's virtual machine.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef int action(int, const struct sigaction *, struct sigaction *);

static int calls;

int sigaction(int number, const struct sigaction *new, struct sigaction *old)
{
	action *next = (action *)dlsym(RTLD_NEXT, "__sigaction");

	calls++;
	return next(number, new, old);
}

static void heard(int number)
{
	printf("heard %d\n", number);
}

int main(void)
{
	struct sigaction wanted, is;

	memset(&wanted, 0, sizeof(wanted));
	wanted.sa_handler = heard;
	if (sigaction(SIGUSR1, &wanted, NULL) || sigaction(SIGUSR1, NULL, &is) || is.sa_handler != heard)
		return 1;
	raise(SIGUSR1);
	printf("%d calls\n", calls);
	return 0;
}
