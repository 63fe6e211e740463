package agent

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/peering"
)

// ownResolvConf is the file that names a pod's resolvers.
const ownResolvConf = "/etc/resolv.conf"

// findDomain sets this cluster's domain, unless it is configured.
func (a *agent) findDomain(_ context.Context, configured string) error {
	if configured != "" {
		return nil
	}
	domain, err := clusterDomain(ownResolvConf, a.cfg.Namespace)
	if err != nil {
		a.log.Warn("cannot find out the domain of this cluster's Services; pods abroad use the usual one", "domain", peering.DefaultClusterDomain, "err", err)
	}
	if a.cfg.ClusterDomain = domain; domain == "" {
		a.cfg.ClusterDomain = peering.DefaultClusterDomain
	}
	return nil
}

// clusterDomain returns the cluster's domain from the resolv.conf of a pod in a namespace: kubelets write it there.
func clusterDomain(file, namespace string) (string, error) {
	conf, err := dns.ClientConfigFromFile(file)
	if err != nil {
		return "", fmt.Errorf("read which domains are searched: %w", err)
	}
	for _, search := range conf.Search {
		if domain, ok := strings.CutPrefix(search, namespace+".svc."); ok {
			return strings.TrimSuffix(domain, "."), nil
		}
	}
	return "", nil
}

// resolver returns a function for the address of the resolver of consumers' names; nil if this cluster has none.
func (a *agent) resolver(service string) func() (netip.Addr, error) {
	if service == "" {
		return nil
	}
	return func() (netip.Addr, error) {
		var s corev1.Service
		key := client.ObjectKey{Namespace: a.cfg.Namespace, Name: service}
		if err := a.mgr.GetCache().Get(context.Background(), key, &s); err != nil { //nolint:forbidigo // a read from a cache does not block
			return netip.Addr{}, fmt.Errorf("read Service %s: %w", key, err)
		}
		address, err := netip.ParseAddr(s.Spec.ClusterIP)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("read the address of Service %s: %w", key, err)
		}
		return address, nil
	}
}
