package twonodes

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
)

// TestAnExternalHostIsReachedFromAbroad exports what listens on a node of home: an offloaded pod
// reaches it through a Service without selector, and at the address that the status has, until
// the ExternalHost is deleted. The API server is not exported, whatever the chart allows.
func TestAnExternalHostIsReachedFromAbroad(t *testing.T) {
	ctx, s := onStage(t)
	w := s.World
	address, control := w.Home.Plan.Nodes[1].Address.String(), w.Home.Plan.Control().Address.String()
	_, err := w.Home.Helm(ctx, append(w.InstallArgs(w.Home), "--set", fmt.Sprintf("network.externalHosts={%s/32,%s/32}", address, control))...)
	ok(t, err)
	var peers v1alpha1.ForeignClusterList
	ok(t, w.Home.Client.List(ctx, &peers))
	vm := e2e.WebPod("default", "vm", map[string]string{"app": "vm"})
	vm.Spec.HostNetwork, vm.Spec.NodeName = true, second(w.Home)
	in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: shop, Name: name} }
	service := &corev1.Service{ObjectMeta: in("db"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: e2e.WebPort}}}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: in("db"), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports:     []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(e2e.WebPort))}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: service.Name}
	open := []v1alpha1.DestinationPort{{Protocol: corev1.ProtocolTCP, Port: e2e.WebPort}}
	host := &v1alpha1.ExternalHost{ObjectMeta: in("db"), Spec: v1alpha1.ExternalHostSpec{Addresses: []string{address}, Ports: open, Clusters: []string{peers.Items[0].Name}}}
	api := &v1alpha1.ExternalHost{ObjectMeta: in("api"), Spec: v1alpha1.ExternalHostSpec{Addresses: []string{control}, Clusters: []string{peers.Items[0].Name}}}
	objects := []ctrlclient.Object{vm, service, slice, host, api}
	ok(t, w.Home.Create(ctx, objects...))
	t.Cleanup(func() {
		for _, o := range objects {
			ok(t, ctrlclient.IgnoreNotFound(w.Home.Client.Delete(context.WithoutCancel(ctx), o)))
		}
	})
	vms, err := w.Home.PodsReady(ctx, e2e.Scheduled, "default", vm.Labels, 1)
	ok(t, err)

	ok(t, w.Until(ctx, e2e.Restarted, "the host to have an address abroad", func(ctx context.Context) (string, error) {
		err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(host), host)
		if err != nil || len(host.Status.Clusters) == 1 && len(host.Status.Clusters[0].Addresses) == 1 {
			return "", err
		}
		return fmt.Sprintf("its status is %+v", host.Status), nil
	}))
	alias := "http://" + host.Status.Clusters[0].Addresses[0] + ":8080/name"
	ok(t, w.Abroad.ReachesAll(ctx, e2e.Restarted, s.twin.Namespace, s.twin.Name, alias, vms))
	var reflected corev1.Service
	ok(t, w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: s.twin.Namespace, Name: service.Name}, &reflected))
	ok(t, w.Abroad.ReachesAll(ctx, e2e.Soon, s.twin.Namespace, s.twin.Name, "http://"+reflected.Spec.ClusterIP+":8080/name", vms))
	t.Logf("%s is %s abroad", address, host.Status.Clusters[0].Addresses[0])

	ok(t, w.Until(ctx, e2e.Soon, "the API server to be refused", func(ctx context.Context) (string, error) {
		err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(api), api)
		if err != nil || meta.IsStatusConditionFalse(api.Status.Conditions, v1alpha1.ConditionAccepted) {
			return "", err
		}
		return fmt.Sprintf("its status is %+v", api.Status), nil
	}))
	ok(t, w.Home.Client.Delete(ctx, host))
	ok(t, w.Until(ctx, e2e.Soon, "the host to be closed", func(ctx context.Context) (string, error) {
		if _, err := w.Abroad.InPod(ctx, s.twin.Namespace, s.twin.Name, "/tool", "curl", "-t", "2s", alias); err == nil {
			return "it is still reached", nil
		}
		return "", nil
	}))
}
