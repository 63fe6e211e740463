package neighbours

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/cloud-provider/controllers/service"
	"k8s.io/cloud-provider/fake"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/metrics/prometheus/controllers"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	. "github.com/entente-dev/entente/integration/e2e"
)

// TestALoadBalancerGetsOnlyNodesAtHome runs the controller that all cloud providers have for Services of
// type LoadBalancer, with a cloud that records the nodes that it gets.
func TestALoadBalancerGetsOnlyNodesAtHome(t *testing.T) {
	ctx, w, node := peered(t)
	told := make(chan []string, 10)
	cloud := &fake.Cloud{ExternalIP: net.IPv4(192, 0, 2, 1), EnsureCallCb: func(call fake.UpdateBalancerCall) {
		var names []string
		for _, n := range call.Hosts {
			names = append(names, n.Name)
		}
		told <- names
	}}
	factory := informers.NewSharedInformerFactory(w.Home.Kube, 0)
	c, err := service.New(cloud, w.Home.Kube, factory.Core().V1().Services(), factory.Core().V1().Nodes(), w.Home.Name, featuregate.NewFeatureGate())
	OK(t, err)
	running, cancel := context.WithCancel(context.WithoutCancel(ctx)) // to the end of the clean-up below
	done := make(chan struct{})
	factory.Start(running.Done())
	go func() {
		defer close(done)
		c.Run(running, 1, controllers.NewControllerManagerMetrics("neighbours"))
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		factory.Shutdown()
	})

	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "balanced"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	OK(t, w.Home.Create(ctx, o))
	t.Cleanup(func() {
		// The controller's finalizer is taken off by what is the controller.
		_, err := w.Home.Kubectl(context.WithoutCancel(ctx), "delete", "service", o.Name, "--timeout=60s")
		OK(t, err)
	})
	select {
	case names := <-told:
		if !slices.Equal(names, []string{w.Home.Node()}) {
			t.Errorf("a load balancer got the nodes %q: want %s, and not %s", names, w.Home.Node(), node)
		}
	case <-time.After(time.Minute):
		t.Error("the load balancer got no node")
	}
	var n corev1.Node
	OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Name: node}, &n))
	if ready, why := NodeCondition(&n); !ready || n.Spec.ProviderID == "" {
		t.Errorf("the virtual node would be left out in any case: %s, provider %q", why, n.Spec.ProviderID)
	}
}
