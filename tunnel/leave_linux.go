package tunnel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/tunnel/plan"
)

// Leave hands over the peers that this node carries to other gateways, before this node stops. It returns
// once they carry them, at once if no other gateway can, or at the end of ctx. Run must run meanwhile.
// Packets on their way still pass, and this node does not take a peer back.
func (f *Fabric) Leave(ctx context.Context) {
	f.leaving.Store(true)
	f.hurry()
	before := f.elections.Load()
	carried := false
	for f.carrying.Load() > 0 || f.elections.Load() < before+2 {
		carried = carried || f.carrying.Load() > 0
		if !notify.Pause(ctx, leaveCheckEvery) {
			return
		}
	}
	if carried {
		notify.Pause(ctx, leaveLinger)
	}
}

// demote keeps this node a gateway while it hands its peers over, if it ceased to be one.
func (f *Fabric) demote(p *pass, d *plan.Desired) {
	self := slices.IndexFunc(d.Nodes, func(n plan.Node) bool { return n.Name == d.Node })
	if self < 0 {
		return
	}
	gateway := &d.Nodes[self].Gateway // findPods has copied the nodes
	if p.demoted = f.demotion.lasts(p.now, *gateway, f.carrying.Load() > 0); p.demoted {
		*gateway = true
		f.askAgain(f.demotion.until.Sub(p.now))
	}
}

// fabricLock is the lock of a running fabric. When both are asked to end the tunnel process waits for
// it, and so for the handover of the peers that the fabric carries.
func fabricLock(device string) string { return filepath.Join(socketDirectory, device+".lock") }

// takeLock takes the lock, if it is free. The kernel releases it when the process ends.
func takeLock(device string) (release func(), err error) {
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
	for end := time.Now().Add(leaveMost); time.Now().Before(end); time.Sleep(leaveCheckEvery) {
		release, err := takeLock(device)
		if err == nil {
			release()
			return
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return
		}
	}
}
