package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/carry"
	"github.com/entente-dev/entente/internal/homeapi"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

// homeAPI serves pods of this cluster that peers run. It implements server.HomeAPI.
type homeAPI struct{ *homeapi.Home }

func (h homeAPI) Connect(ctx context.Context, provider peering.ClusterID, contract, uid string, s server.CarryStream) error {
	return h.Home.Connect(ctx, provider, contract, uid, s)
}

// buildHomeAPI builds both halves: one serves this cluster's pods abroad, the other carries connections of pods
// that run here to their homes.
func (a *agent) buildHomeAPI(ctx context.Context, cfg HomeAPIConfig) error {
	var err error
	a.home, err = homeapi.NewHome(homeapi.HomeConfig{
		REST: a.cfg.Kubernetes, Client: a.kubernetes, Namespace: a.cfg.Namespace, Log: a.log,
		Pod: func(provider peering.ClusterID, contract, uid string) *corev1.Pod {
			return a.nodes.pod(provider, contract, uid)
		},
		Offloading: a.offloading,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(register(a.home.Collectors()...), a.run(a.home.Run)); err != nil || cfg.Address == "" {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for pods of consumers on %s: %w", cfg.Address, err)
	}
	abroad, err := homeapi.NewAbroad(homeapi.AbroadConfig{
		Listener: listener, TLS: a.homeAPITLS(), Log: a.log,
		PodAt: func(address netip.Addr) (homeapi.Pod, bool) {
			p, ok := a.offloaded.PodAt(address)
			return homeapi.Pod{Consumer: peering.ClusterID(p.PeerID), Contract: p.Contract, UID: p.OriginUID}, ok
		},
		Allowed: func(contract string) bool {
			c, ok := a.contracts.granted(contract)
			return ok && c.HomeAPI != nil
		},
		Open: func(ctx context.Context, pod homeapi.Pod) (carry.Stream, error) {
			return client.ConnectHomeAPI(ctx, a.sessions.Conn(pod.Consumer), pod.Contract, pod.UID)
		},
	})
	if err != nil {
		return err
	}
	return errors.Join(register(abroad.Collectors()...), a.run(abroad.Run))
}

// register registers metrics with the manager's registry.
func register(all ...prometheus.Collector) error {
	for _, c := range all {
		if err := metrics.Registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// pod returns the pod with a UID on the virtual node of a contract with a provider; nil if there is none.
func (n *nodes) pod(provider peering.ClusterID, contract, uid string) *corev1.Pod {
	v := n.of(contract)
	if v == nil || v.spec.Peer != provider {
		return nil
	}
	return v.node.Pod(uid)
}

// offloading returns the NamespaceOffloading of a namespace; nil if there is none.
func (a *agent) offloading(namespace string) *v1alpha1.NamespaceOffloading {
	o, _ := a.offloadingOf(context.Background(), namespace) //nolint:forbidigo // a read from a cache does not block
	return o
}

// homeAPIAddresses returns where pods here reach the API servers of their homes.
func (a *agent) homeAPIAddresses() []netip.Addr {
	var s corev1.Service
	key := ctrlclient.ObjectKey{Namespace: a.cfg.Namespace, Name: a.cfg.HomeAPI.Service}
	if err := a.mgr.GetCache().Get(context.Background(), key, &s); err != nil { //nolint:forbidigo // a read from a cache does not block
		a.log.Warn("cannot find out where pods of consumers reach their home's API", "service", key, "err", err)
		return nil
	}
	return kube.Addrs(s.Spec.ClusterIPs)
}

// homeAPIHere returns how pods here reach the API servers of their homes; nil if they do not.
func (a *agent) homeAPIHere() *podspec.HomeAPI {
	if a.cfg.HomeAPI.Address == "" {
		return nil
	}
	addresses := a.homeAPIAddresses()
	if len(addresses) == 0 {
		return nil
	}
	return &podspec.HomeAPI{Address: addresses[0], CA: string(a.source.Identity().RootPEM())}
}

// homeAPITLS has a certificate for the names of the API server and the addresses of the Service, which may be
// created, or created again, later than the agent.
func (a *agent) homeAPITLS() *tls.Config {
	var mu sync.Mutex
	var last []netip.Addr
	var with *tls.Config
	return &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		now := a.homeAPIAddresses()
		mu.Lock()
		if with == nil || !slices.Equal(now, last) {
			last, with = now, a.source.AdminTLS(podspec.HomeAPINames(), now)
		}
		use := with
		mu.Unlock()
		return use.GetCertificate(hello)
	}}
}
