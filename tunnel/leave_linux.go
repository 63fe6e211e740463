package tunnel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/internal/notify"
)

// Leave has other gateways carry what this node carries, before it stops. It returns once they do, or
// at once if there are none that can, and at the end of ctx. Run has to run meanwhile. What is on
// its way passes, and nothing is taken back.
func (f *Fabric) Leave(ctx context.Context) {
	f.leaving.Store(true)
	f.hurry()
	looked := f.looked.Load()
	carried := false
	for f.carrying.Load() > 0 || f.looked.Load() < looked+2 {
		carried = carried || f.carrying.Load() > 0
		if !notify.Pause(ctx, leaveLook) {
			return
		}
	}
	if carried {
		notify.Pause(ctx, leaveLinger)
	}
}

// fabricLock is held by a fabric as long as it runs: the tunnel process ends after it, where both are told
// to end, and not before what it carries is handed over.
func fabricLock(device string) string { return filepath.Join(socketDirectory, device+".lock") }

// holdLock takes the lock, if nobody has it. It is given back when the process ends.
func holdLock(device string) (release func(), err error) {
	if err := os.MkdirAll(socketDirectory, 0o700); err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	f, err := os.OpenFile(fabricLock(device), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock device %s: %w", device, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock device %s: %w", device, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// awaitFabric waits until no fabric runs, for leaveMost.
func awaitFabric(device string) {
	for end := time.Now().Add(leaveMost); time.Now().Before(end); time.Sleep(leaveLook) {
		release, err := holdLock(device)
		if err == nil {
			release()
			return
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return
		}
	}
}
