package e2e

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// tailMost is how much is kept of the log of each part of Kubernetes.
const tailMost = 2 << 20

// Dump writes what helps to find out what went wrong into a folder: logs of
// Entente and of Kubernetes, objects, events, networks.
func (w *World) Dump(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	write := func(name string, text string, err error) {
		if err != nil {
			text += "\n" + err.Error()
		}
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, s := range w.Sides() {
		kubectl := func(name string, args ...string) {
			out, err := s.Kubectl(ctx, args...)
			write(s.Name+"-"+name, out, err)
		}
		for _, part := range []string{"agent", "fabric", "cleanup"} {
			selector := "app.kubernetes.io/component=" + part
			kubectl(part+".log", "logs", "-n", SystemNamespace, "-l", selector, "--all-containers", "--prefix", "--tail=-1", "--ignore-errors")
			if part != "cleanup" {
				kubectl(part+"-previous.log", "logs", "-n", SystemNamespace, "-l", selector, "--all-containers", "--prefix", "--tail=-1", "--previous", "--ignore-errors")
			}
		}
		kubectl("objects.txt", "get", "nodes,namespaces,pods,services,endpointslices", "-A", "-o", "wide")
		kubectl("pods.txt", "describe", "pods", "-n", SystemNamespace)
		kubectl("entente.yaml", "get", "foreignclusters,contracts,peeringrequests,tunnels,fabricnodes,nodediscoveries,offloadedpods,namespaceoffloadings,peeringpolicies", "-A", "-o", "yaml")
		kubectl("nodes.yaml", "get", "nodes", "-o", "yaml")
		kubectl("events.txt", "get", "events", "-A", "--sort-by=.lastTimestamp")
		for name, argv := range map[string][]string{
			"addresses.txt": {"ip", "addr"},
			"routes.txt":    {"ip", "route", "show", "table", "all"},
			"nft.txt":       {"nft", "list", "ruleset"},
		} {
			out, err := s.OnNode(ctx, argv...)
			write(s.Name+"-"+name, out, err)
		}
		out, err := s.WireGuard(ctx)
		write(s.Name+"-wireguard.txt", out, err)
		components, err := filepath.Glob(filepath.Join(w.Lab.Dir(), "nodes", s.Node(), "var/log/lab/*.log"))
		errs = append(errs, err)
		for _, file := range components {
			text, err := tail(file)
			write(s.Name+"-"+filepath.Base(file), text, err)
		}
	}
	return errors.Join(errs...)
}

// tail is the end of a file.
func tail(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-tailMost), io.SeekStart)
	}
	b, err := io.ReadAll(io.LimitReader(f, tailMost))
	return string(b), err
}
