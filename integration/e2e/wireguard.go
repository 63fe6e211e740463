package e2e

import (
	"context"
	"fmt"
	"strings"
)

// WireGuard is the output of `wg show` in the network namespace of the cluster's node. Where the
// kernel has no WireGuard, the socket that wg wants is private to the fabric's pod; root can reach
// it through the process that holds it.
func (s *Side) WireGuard(ctx context.Context, args ...string) (string, error) {
	argv, err := s.WireGuardCommand(ctx, args...)
	if err != nil {
		return "", err
	}
	return s.OnNode(ctx, argv...)
}

// WireGuardCommand is the command of the WireGuard process.
func (s *Side) WireGuardCommand(ctx context.Context, args ...string) ([]string, error) {
	pid, err := s.Process(ctx, PartWireGuard)
	if err != nil {
		return nil, err
	}
	return WireGuardIn(pid, args...), nil
}

// WireGuardIn is the same, for a tunnel process that is known.
func WireGuardIn(pid int, args ...string) []string {
	show := "wg " + strings.Join(append([]string{"show"}, args...), " ")
	sockets := fmt.Sprintf("/proc/%d/root/var/run/wireguard", pid)
	return []string{"unshare", "--mount", "sh", "-c", fmt.Sprintf(
		"mkdir -p /run/wireguard && mount -t tmpfs none /run/wireguard && for f in %s/*.sock; do [ ! -S $f ] || ln -s $f /run/wireguard/; done; exec %s", sockets, show)}
}
