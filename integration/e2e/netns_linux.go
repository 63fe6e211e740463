package e2e

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNetwork runs do in the network namespace of a file such as /proc/PID/ns/net.
// Sockets that do opens stay there. do must not start goroutines that open any.
func inNetwork(file string, do func() error) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	defer func() { _ = f.Close() }()
	result := make(chan error, 1)
	go func() {
		// The thread never comes back: it ends with this goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter network %s: %w", file, err)
			return
		}
		result <- do()
	}()
	return <-result
}
