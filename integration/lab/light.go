package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
)

// lightCluster prepares a control plane on free loopback ports in dir, and
// returns what runs it and its URL.
func lightCluster(ctx context.Context, spec daemonSpec, c ClusterPlan, dir, logs string, logger *slog.Logger) (*supervisor, string, error) {
	pki := filepath.Join(dir, "pki")
	if err := writePKI(pki, c); err != nil {
		return nil, "", fmt.Errorf("make certificates: %w", err)
	}
	p, err := freePorts(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("find free ports: %w", err)
	}
	cp := controlPlane{
		cluster: c, kube: spec.Binaries.Path("kube", "kube"), pki: pki, data: filepath.Join(dir, "etcd"),
		bind: netip.MustParseAddr("127.0.0.1"),
		// No node, so no way to the Service kubernetes: an address for
		// documentation, because a loopback address is refused there.
		advertise: netip.AddrFrom4([4]byte{192, 0, 2, byte(c.Index)}),
		ports:     p,
	}
	if kwok := spec.Binaries["kwok"]; kwok != "" && spec.Plan.Options.FakeNodes > 0 {
		cp.kwok = filepath.Join(kwok, "kwok")
		for _, s := range kwokStages() {
			cp.stages = append(cp.stages, filepath.Join(kwok, s))
		}
	}
	if err := os.MkdirAll(cp.data, 0o700); err != nil {
		return nil, "", err
	}
	if err := cp.writeKubeconfigs(); err != nil {
		return nil, "", err
	}
	server := fmt.Sprintf("https://127.0.0.1:%d", p.API)
	if err := writeKubeconfig(filepath.Join(dir, "kubeconfig"), c.Name, pki, "admin", server); err != nil {
		return nil, "", err
	}
	return &supervisor{
		logDir: logs, mark: labMark(spec.Plan.Options.Name), logger: logger.With("cluster", c.Name), processes: cp.processes(),
	}, server, nil
}

// The ports of light labs: below those that Linux gives to outgoing connections,
// one of which could otherwise take a port between its choice and its use.
const (
	lightPortFirst = 18000
	lightPortLast  = 31999
)

// freePorts finds unused loopback ports.
func freePorts(ctx context.Context) (ports, error) {
	var p ports
	for _, to := range []*int{&p.API, &p.Etcd, &p.EtcdPeer, &p.ControllerManager, &p.Scheduler, &p.Kwok} {
		l, err := listenSomewhere(ctx)
		if err != nil {
			return p, err
		}
		defer l.Close() // all at the end, so that all are different
		*to = l.Addr().(*net.TCPAddr).Port
	}
	return p, nil
}

// lightPorts are those that were given to a light lab of this process, whose processes
// may not listen yet.
var lightPorts sync.Map //nolint:gochecknoglobals // the machine has them once

func listenSomewhere(ctx context.Context) (net.Listener, error) {
	const tries = 200
	last := errors.New("all were given")
	for range tries {
		port := lightPortFirst + rand.IntN(lightPortLast-lightPortFirst+1)
		if _, given := lightPorts.LoadOrStore(port, true); given {
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return l, nil
		}
		last = err
	}
	return nil, last
}
