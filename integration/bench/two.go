package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/bare"
	"github.com/entente-dev/entente/integration/eventually"
)

// Names that the two clusters share.
const (
	consumer     = "home"
	virtualNode  = requestName + v1alpha1.VirtualNodeSuffix
	offloadedTo  = "offloaded"
	nativeSpace  = "native"
	promptly     = 2 * time.Minute
	mostPods     = 5000
	podsGranted  = 2 * mostPods
	requestName  = "bench"
	podProcessor = "1m"
)

// two are two clusters, one of which is the provider of the other. Both have the same fake nodes,
// which run a pod as soon as it is theirs.
type two struct {
	home, provider *agent
	// remote is what the offloaded namespace is called at the provider.
	remote string
	// network: the contract has one.
	network bool
}

// startTwo starts both clusters, and makes their contract. With a network they keep a Tunnel for it, which nothing
// runs.
func (b *bench) startTwo(ctx context.Context, network bool) (_ *two, err error) {
	w := &two{network: network}
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	for name, to := range map[string]**agent{consumer: &w.home, provider: &w.provider} {
		dir := filepath.Join(b.dir, fmt.Sprint(name, "-network-", network))
		if *to, err = startAgent(ctx, name, dir, b.root, b.binary, fakePods); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if network {
		if err := w.both(func(a *agent) error { return a.reportFabric(ctx) }); err != nil {
			return nil, err
		}
	}
	if err := w.peer(ctx); err != nil {
		return nil, err
	}
	if err := w.offload(ctx); err != nil || !network {
		return w, err
	}
	return w, w.connect(ctx)
}

func (w *two) stop() {
	for _, a := range []*agent{w.home, w.provider} {
		if a != nil {
			a.stop()
		}
	}
}

// join redeems a token of another cluster's as the administrator of this one.
func (a *agent) join(ctx context.Context, token string) error {
	var cm corev1.ConfigMap
	if err := a.client.Get(ctx, ctrlclient.ObjectKey{Namespace: bare.Namespace, Name: client.CAConfigMap}, &cm); err != nil {
		return err
	}
	admin, err := client.DialAdmin(ctx, client.AdminConfig{REST: a.lab.Clusters[0].RESTConfig(), Address: a.admin, CA: []byte(cm.Data[client.CAKey])})
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	_, err = admin.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: token})
	return err
}

// peer makes the contract of the two, and waits for its virtual node.
func (w *two) peer(ctx context.Context) error {
	all := int32(100)
	granted := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100"), corev1.ResourceMemory: resource.MustParse("1000Gi"), corev1.ResourcePods: *resource.NewQuantity(podsGranted, resource.DecimalSI)}
	policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "aa-bench"}, Spec: v1alpha1.PeeringPolicySpec{
		Accept: v1alpha1.AcceptAutomatic, PodSecurity: "baseline",
		Limits: v1alpha1.PolicyLimits{Resources: granted, PercentOfFree: &all},
	}}
	if err := w.provider.client.Create(ctx, policy); err != nil {
		return err
	}
	tokens, err := w.provider.tokens(ctx, 1)
	if err != nil {
		return err
	}
	token, err := tokens[0].Encode()
	if err != nil {
		return err
	}
	if err := w.home.join(ctx, token); err != nil {
		return err
	}
	request := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: requestName}, Spec: v1alpha1.PeeringRequestSpec{
		ForeignCluster: provider, Network: v1alpha1.NetworkNone, Resources: granted,
	}}
	if w.network {
		request.Spec.Network = v1alpha1.NetworkTunnel
	}
	if err := w.home.client.Create(ctx, request); err != nil {
		return err
	}
	return eventually.Is(ctx, promptly, "the virtual node to be ready", func(ctx context.Context) error {
		var node corev1.Node
		if err := w.home.client.Get(ctx, ctrlclient.ObjectKey{Name: virtualNode}, &node); err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is not ready")
	})
}

// offload makes a namespace whose pods run at the provider, and one whose run at home.
func (w *two) offload(ctx context.Context) error {
	for _, name := range []string{offloadedTo, nativeSpace} {
		if err := w.home.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	err := w.home.client.Create(ctx, &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Namespace: offloadedTo, Name: v1alpha1.NamespaceOffloadingName},
		Spec:       v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyRemote},
	})
	if err != nil {
		return err
	}
	return eventually.Is(ctx, promptly, "the namespace to be open", func(ctx context.Context) error {
		var o v1alpha1.NamespaceOffloading
		if err := w.home.client.Get(ctx, ctrlclient.ObjectKey{Namespace: offloadedTo, Name: v1alpha1.NamespaceOffloadingName}, &o); err != nil {
			return err
		}
		if len(o.Status.Clusters) == 0 || o.Status.Clusters[0].RemoteName == "" || o.Status.State != "Ready" {
			return fmt.Errorf("it is %q: %s", o.Status.State, o.Status.Message)
		}
		w.remote = o.Status.Clusters[0].RemoteName
		probe := podsOf(offloadedTo, 1).Spec.Template
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: offloadedTo, Name: "probe"}, Spec: probe.Spec}
		if err := w.home.client.Create(ctx, pod, ctrlclient.DryRunAll); err != nil {
			return err
		}
		if len(pod.Spec.Tolerations) == 0 {
			return errors.New("pods are not placed yet")
		}
		return nil
	})
}

// podsOf is a Deployment of pods that ask for next to nothing and have no token, like those
// that the incumbents are measured with.
func podsOf(namespace string, n int) *appsv1.Deployment {
	replicas, none := int32(n), false
	labels := map[string]string{"app": "bench"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bench"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				AutomountServiceAccountToken: &none,
				Containers: []corev1.Container{{
					Name: "main", Image: "none.example/none:1",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(podProcessor)}},
				}},
			}},
		},
	}
}

// kube is a client of a cluster without a rate limit, in the cheapest encoding.
func (a *agent) kube() (*kubernetes.Clientset, error) {
	config := rest.CopyConfig(a.lab.Clusters[0].RESTConfig())
	config.QPS, config.ContentType, config.AcceptContentTypes = -1, "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(config)
}
