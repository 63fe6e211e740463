package lab

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"github.com/entente-dev/entente/integration/eventually"
)

// Host is a machine on a LAN of a lab whose clusters share one, on which nothing
// runs: namespaces of its own in which programs of this machine can be run, such as a
// DNS server. It has the machine's file system, but a /run of its own.
type Host struct {
	Name string
	// Address and Address6 are its addresses, besides a link-local one.
	Address, Address6 netip.Addr

	lab *Lab
	pid int
}

// Host makes a host, or finds it, on LAN number lan: 1 is the one that the clusters
// share, 2 the one that nodes can move to.
func (l *Lab) Host(ctx context.Context, name string, lan int) (*Host, error) {
	var s HostStatus
	if err := l.call(ctx, http.MethodPost, "/host", hostRequest{Name: name, LAN: lan}, &s); err != nil {
		return nil, err
	}
	h := &Host{Name: s.Name, Address: s.Address, Address6: s.Address6, lab: l, pid: s.PID}
	ctx, cancel := context.WithTimeoutCause(ctx, hostReadyMost, fmt.Errorf("not ready within %v", hostReadyMost))
	defer cancel()
	// Its route is the last thing that it gets.
	if err := eventually.Poll(ctx, 20*time.Millisecond, func() bool {
		out, err := h.Exec(ctx, "ip", "route", "show", "default").Output()
		return err == nil && len(out) > 0
	}); err != nil {
		return nil, fmt.Errorf("host %s: %w; see %s", name, context.Cause(ctx), l.dir+"/log/host-"+name+".log")
	}
	return h, nil
}

// hostReadyMost bounds how long a host has to set itself up.
const hostReadyMost = time.Minute

// Exec prepares a command on the host. What it starts ends with the host; when ctx
// ends, so does the command alone.
func (h *Host) Exec(ctx context.Context, argv ...string) *exec.Cmd {
	args := []string{fmt.Sprintf("--target=%d", h.pid), "--net", "--mount", "--uts", "--ipc", "--pid", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(args, argv...)...)
	cmd.Env = append(os.Environ(), labMark(h.lab.name))
	return cmd
}

// Remove ends the host and all that runs on it, without warning.
func (h *Host) Remove(ctx context.Context) error {
	return h.lab.RemoveHost(ctx, h.Name)
}

// RemoveHost removes the host called name, if there is one.
func (l *Lab) RemoveHost(ctx context.Context, name string) error {
	return l.call(ctx, http.MethodPost, "/host", hostRequest{Name: name, Remove: true}, nil)
}
