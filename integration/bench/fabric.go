package main

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
)

const (
	// fakePods is the prefix in which fake nodes give pods their addresses: the beginning of that in package lab.
	fakePods = "10.64.0.0/16"
	// homeAddress is the address of a pod of home that serves the offloaded pods, among them.
	homeAddress = "10.64.255.1"
	// reportEvery is how often a fabric reports, as in the field.
	reportEvery = time.Minute
	// followEvery is how often a fabric looks for new tunnels.
	followEvery = time.Second
	servedName  = "served"
	// mostExposed is how many addresses a Tunnel surely has room for.
	mostExposed = 1000
)

// reportFabric stands in for the fabric on each node of a cluster until ctx ends: it writes what agents wait for. Nothing
// runs a tunnel, and no packet passes.
func (a *agent) reportFabric(ctx context.Context) error {
	var list corev1.NodeList
	if err := a.client.List(ctx, &list); err != nil {
		return err
	}
	var fabric []*v1alpha1.FabricNode
	for i := range list.Items {
		node := &list.Items[i]
		// The addresses of fake nodes are loopback, where no other cluster would dial them.
		endpoint, before := fmt.Sprintf("10.9.0.%d:51820", i+1), node.DeepCopy()
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationEndpoint, endpoint)
		if err := a.client.Patch(ctx, node, ctrlclient.MergeFrom(before)); err != nil {
			return err
		}
		n := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
		if err := a.client.Create(ctx, n); err != nil {
			return err
		}
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		n.Status = v1alpha1.FabricNodeStatus{
			PublicKey: base64.StdEncoding.EncodeToString(key.PublicKey().Bytes()), PublicKeySince: new(metav1.Now()),
			OverlayAddress: fmt.Sprintf("fd00:9::%d", i+1), Endpoints: []string{endpoint}, Backend: "kernel", Preflight: &v1alpha1.FabricPreflight{},
		}
		fabric = append(fabric, n)
	}
	report := func() (err error) {
		paths, err := a.fakePaths(ctx)
		if err != nil {
			return err
		}
		for _, n := range fabric {
			patch := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
			before := patch.DeepCopy()
			patch.Status = *n.Status.DeepCopy()
			patch.Status.ObservedAt, patch.Status.Paths = metav1.Now(), paths
			err = errors.Join(err, a.client.Status().Patch(ctx, patch, ctrlclient.MergeFrom(before)))
		}
		return err
	}
	if err := report(); err != nil {
		return fmt.Errorf("report a fabric of %s: %w", a.name, err)
	}
	go func() {
		known, last := 0, time.Now()
		for sleep(ctx, followEvery) == nil {
			paths, err := a.fakePaths(ctx)
			if err == nil && (len(paths) != known || time.Since(last) > reportEvery) {
				known, last = len(paths), time.Now()
				_ = report() // a silent fabric shows in the peer's condition
			}
		}
	}()
	return nil
}

// fakePaths are paths that are up: to each gateway of each peer that has a Tunnel, and to the gateways of the cluster.
func (a *agent) fakePaths(ctx context.Context) (out []v1alpha1.FabricPath, err error) {
	var tunnels v1alpha1.TunnelList
	var nodes v1alpha1.FabricNodeList
	if err := errors.Join(a.client.List(ctx, &tunnels), a.client.List(ctx, &nodes)); err != nil {
		return nil, err
	}
	up := func(peer, node string) {
		out = append(out, v1alpha1.FabricPath{PeerID: peer, Node: node, State: "Up", MTU: 1420, ConnectionType: "Direct"})
	}
	for _, t := range tunnels.Items {
		for _, g := range t.Spec.Gateways {
			up(t.Spec.PeerID, g.Name)
		}
	}
	for _, n := range nodes.Items {
		if n.Spec.Gateway && len(out) > 0 {
			up(n.Spec.ClusterID, n.Name)
		}
	}
	return out, nil
}

// connect makes a Service of home's that the offloaded pods may use, and waits until both clusters have the Tunnel of
// the contract.
func (w *two) connect(ctx context.Context) error {
	meta := metav1.ObjectMeta{Namespace: offloadedTo, Name: servedName}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if err := w.home.client.Create(ctx, service); err != nil {
		return err
	}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: servedName}
	err := w.home.client.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(80)), Name: new("")}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{homeAddress}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
	})
	if err != nil {
		return err
	}
	for _, a := range []*agent{w.home, w.provider} {
		err := eventually.Is(ctx, promptly, "a Tunnel of "+a.name, func(ctx context.Context) error {
			var list v1alpha1.TunnelList
			if err := a.client.List(ctx, &list); err != nil {
				return err
			}
			if len(list.Items) != 1 || len(list.Items[0].Spec.Local) == 0 || len(list.Items[0].Spec.Remote) == 0 {
				return fmt.Errorf("there are %d, or one without prefixes: %s", len(list.Items), a.networkOf(ctx))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// networkOf is what a cluster says of the network to its peer.
func (a *agent) networkOf(ctx context.Context) string {
	var list v1alpha1.ForeignClusterList
	if err := a.client.List(ctx, &list); err != nil || len(list.Items) == 0 {
		return fmt.Sprint("no peer ", err)
	}
	if c := meta.FindStatusCondition(list.Items[0].Status.Conditions, v1alpha1.ConditionNetwork); c != nil {
		return c.Reason + ": " + c.Message
	}
	return "no condition"
}

// seesExposed waits until the addresses of n offloaded pods may reach home, by its Tunnel, if there is one.
func (w *two) seesExposed(ctx context.Context, n int) error {
	if !w.network {
		return nil
	}
	return eventually.Is(ctx, promptly, "the Tunnel to have the addresses of all pods", func(ctx context.Context) error {
		var list v1alpha1.TunnelList
		if err := w.home.client.List(ctx, &list); err != nil {
			return err
		}
		has := 0
		for _, t := range list.Items {
			for _, x := range t.Spec.Allow {
				has += len(x.From)
			}
		}
		if has < min(n, mostExposed) {
			return fmt.Errorf("it has %d of %d", has, n)
		}
		return nil
	})
}

// tunnelUse adds what an API server was asked about Tunnels in a step, and which writes conflicted.
func (c *course) tunnelUse(took float64, before, after apiUse) {
	for what, count := range after.requests {
		count -= before.requests[what]
		verb, resource, _ := strings.Cut(what, " ")
		if strings.HasSuffix(resource, " 409") && verb != "POST" {
			c.Conflicts += count
		} else if resource == "tunnels" && verb != "GET" && verb != "LIST" && verb != "WATCH" {
			c.TunnelWrites = max(c.TunnelWrites, count/max(took, 1))
		}
	}
}

// suffix tells courses with a network from those without.
func (c *course) suffix() string {
	if c.Network {
		return " with a network"
	}
	return ""
}
