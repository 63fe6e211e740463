package agent

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/peering"
)

// peerPort is the name of the Service port that leads to the peer API.
const peerPort = "peer"

// endpoints returns where this cluster's peer API can be dialled: as configured, or otherwise by the peer Service.
func endpoints(ctx context.Context, c client.Reader, cfg *Config) ([]string, error) {
	if len(cfg.PeerEndpoints) > 0 || cfg.PeerService == "" {
		return cfg.PeerEndpoints, nil
	}
	var service corev1.Service
	if err := c.Get(ctx, client.ObjectKey{Namespace: cfg.Namespace, Name: cfg.PeerService}, &service); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("read Service %s/%s: %w", cfg.Namespace, cfg.PeerService, err)
	}
	var nodes corev1.NodeList
	if service.Spec.Type == corev1.ServiceTypeNodePort {
		// The list is only read, every few seconds.
		if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
	}
	return ServiceEndpoints(&service, nodes.Items), nil
}

// ServiceEndpoints returns where a Service's peer port can be dialled from outside the cluster, best first, at most
// as many as may be announced to a peer: its load balancers, or a port of each ready node. A ClusterIP cannot be
// dialled.
func ServiceEndpoints(service *corev1.Service, nodes []corev1.Node) []string {
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == peerPort })
	if i < 0 {
		return nil
	}
	port := service.Spec.Ports[i]
	var out []string
	switch service.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			for _, host := range []string{ingress.IP, ingress.Hostname} {
				if host != "" {
					out = append(out, net.JoinHostPort(host, strconv.Itoa(int(port.Port))))
				}
			}
		}
	case corev1.ServiceTypeNodePort:
		for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
			for n := range nodes {
				if nodes[n].Labels[v1alpha1.LabelVirtualNode] != "" || !ready(&nodes[n]) {
					continue
				}
				for _, a := range nodes[n].Status.Addresses {
					if a.Type == kind && kube.HasFamily(service, a.Address) {
						out = append(out, net.JoinHostPort(a.Address, strconv.Itoa(int(port.NodePort))))
					}
				}
			}
			if len(out) > 0 {
				break // external addresses are preferred
			}
		}
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName:
	}
	slices.Sort(out)
	return out[:min(len(out), peering.MaxEndpoints)]
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
