package userspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// FabricLock is the file of the lock of a running fabric. When both are asked to end the tunnel process waits for
// it, and so for the handover of the peers that the fabric carries.
func FabricLock(device string) string { return filepath.Join(directory, device+".lock") }

// TakeLock takes the lock, if it is free. The kernel releases it when the process ends.
func TakeLock(device string) (release func(), err error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	f, err := os.OpenFile(FabricLock(device), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock device %s: %w", device, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock device %s: %w", device, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// awaitFabric waits until no fabric runs, for handoverMost.
func awaitFabric(device string) {
	for end := time.Now().Add(handoverMost); time.Now().Before(end); time.Sleep(handoverCheck) {
		release, err := TakeLock(device)
		if err == nil {
			release()
			return
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return
		}
	}
}
