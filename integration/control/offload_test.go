package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/peering"
)

func inNamespace(name string) ctrlclient.ListOption { return ctrlclient.InNamespace(name) }
func managed() ctrlclient.ListOption {
	return ctrlclient.MatchingLabels{v1alpha1.LabelManaged: v1alpha1.Manager}
}
func virtualNodes() ctrlclient.ListOption { return ctrlclient.HasLabels{v1alpha1.LabelVirtualNode} }

// camel turns UPPER_SNAKE into UpperCamel.
func camel(reason peering.Reason) string {
	out := ""
	for part := range strings.SplitSeq(string(reason), "_") {
		out += part[:1] + strings.ToLower(part[1:])
	}
	return out
}

// offloaded makes a namespace at home whose pods may run abroad, and returns its
// name there too.
func offloaded(t *testing.T, home, abroad *cluster) (namespace, remote string) {
	t.Helper()
	namespace = newNamespace(t, home, "off")
	offload(t, home, offloadingOf(namespace, nil))
	err := eventually.Is(t.Context(), soon, "namespace "+namespace+" abroad", func(ctx context.Context) error {
		spaces, err := list[corev1.NamespaceList](ctx, abroad, managed(), ctrlclient.MatchingLabels{v1alpha1.LabelOriginNamespace: namespace})
		if err != nil {
			return err
		}
		if len(spaces.Items) != 1 {
			return fmt.Errorf("there are %d", len(spaces.Items))
		}
		remote = spaces.Items[0].Name
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return namespace, remote
}

// lastingPod is a pod that runs abroad, and has to stay the same there whatever happens to the
// contract.
type lastingPod struct {
	*corev1.Pod
	abroad *cluster
	remote string
	pods   map[string]string
}

// newLastingPod offloads a namespace and runs a pod in it.
func newLastingPod(t *testing.T, home, abroad *cluster) *lastingPod {
	t.Helper()
	namespace, remote := offloaded(t, home, abroad)
	p := &lastingPod{Pod: remotePod(namespace, "lasts", nil), abroad: abroad, remote: remote}
	if err := home.client.Create(t.Context(), p.Pod); err != nil {
		t.Fatal(err)
	}
	if err := runs(t.Context(), home, p.Pod); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.pods, err = podsAbroad(t.Context(), abroad, remote); err != nil || len(p.pods) != 1 {
		t.Fatalf("abroad run %v, %v", p.pods, err)
	}
	return p
}

// lasts checks that it is the same abroad.
func (p *lastingPod) lasts(t *testing.T) {
	t.Helper()
	if now, err := podsAbroad(t.Context(), p.abroad, p.remote); err != nil || fmt.Sprint(now) != fmt.Sprint(p.pods) {
		t.Errorf("abroad ran %v and now %v: %v", p.pods, now, err)
	}
}

// offload opens a namespace, and waits until pods are placed by it.
func offload(t *testing.T, home *cluster, o *v1alpha1.NamespaceOffloading) {
	t.Helper()
	if err := home.client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Its pods first, or they would be moved home one by one.
		ctx := context.WithoutCancel(t.Context())
		if err := home.client.DeleteAllOf(ctx, &corev1.Pod{}, ctrlclient.InNamespace(o.Namespace), ctrlclient.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
		remove(t, home, o)
	})
	probe := remotePod(o.Namespace, "probe", nil)
	err := eventually.Is(t.Context(), soon, "placement in namespace "+o.Namespace, func(ctx context.Context) error {
		made := probe.DeepCopy()
		made.Spec.NodeName, made.Spec.Tolerations = "", nil
		if err := home.client.Create(ctx, made, ctrlclient.DryRunAll); err != nil {
			return err
		}
		if o.Spec.PodStrategy != v1alpha1.StrategyLocal && !tolerates(made) {
			return errors.New("pods do not tolerate virtual nodes yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func tolerates(p *corev1.Pod) bool {
	for _, t := range p.Spec.Tolerations {
		if t.Key == v1alpha1.TaintVirtualNode {
			return true
		}
	}
	return false
}

// remotePod is a pod on the virtual node, past the scheduler.
func remotePod(namespace, name string, change func(*corev1.Pod)) *corev1.Pod {
	return pod(namespace, name, func(p *corev1.Pod) {
		p.Spec.NodeName = nodeName
		p.Spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.TaintVirtualNode, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
		if change != nil {
			change(p)
		}
	})
}

// runs waits until a pod runs at home, by its status.
func runs(ctx context.Context, c *cluster, p *corev1.Pod) error {
	return eventually.Is(ctx, later, "pod "+p.Name+" to run", func(ctx context.Context) error {
		if err := c.get(ctx, p.Name, p); err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s on node %q: %s %s %+v", p.Status.Phase, p.Spec.NodeName, p.Status.Reason, p.Status.Message, p.Status.Conditions)
		}
		return nil
	})
}

// podsAbroad returns the UIDs of the pods that run abroad, by name.
func podsAbroad(ctx context.Context, abroad *cluster, remote string) (map[string]string, error) {
	pods, err := list[corev1.PodList](ctx, abroad, inNamespace(remote))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i := range pods.Items {
		out[pods.Items[i].Name] = string(pods.Items[i].UID)
	}
	return out, nil
}

// unharmed restarts each agent by a crash, and checks that no pod abroad was
// touched.
func unharmed(t *testing.T, home, abroad *cluster, remote string) {
	t.Helper()
	ctx := t.Context()
	before, err := podsAbroad(ctx, abroad, remote)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*cluster{home, abroad} {
		if err := c.restart(ctx); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(connected(ctx, home, soon), connected(ctx, abroad, soon)); err != nil {
			t.Fatal(err)
		}
		if err := eventually.Is(ctx, soon, "the node to be ready", func(ctx context.Context) error { return nodeReady(ctx, home, nodeName) }); err != nil {
			t.Error(err)
		}
		// What should not happen would happen when both have compared: give it the
		// time of what is recorded again.
		time.Sleep(2 * time.Second)
		after, err := podsAbroad(ctx, abroad, remote)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s's agent was restarted; pods abroad and their UIDs (-before +after):\n%s", c.name, diff)
		}
	}
	err = eventually.Is(ctx, soon, "namespaces to be reported as accepted", func(ctx context.Context) error {
		all, err := list[v1alpha1.NamespaceOffloadingList](ctx, home)
		if err != nil {
			return err
		}
		for _, o := range all.Items {
			if o.Status.State != "Ready" {
				err = errors.Join(err, fmt.Errorf("namespace %s is %s: %s", o.Namespace, o.Status.State, o.Status.Message))
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestARestartTouchesNoPod(t *testing.T) {
	home, abroad := agents(t)
	peered(t, home, abroad, "cpu=8", "memory=16Gi", "pods=60")
	namespace, remote := offloaded(t, home, abroad)
	const replicas = 50
	n := int32(replicas)
	labels := map[string]string{"app": "fifty"}
	no := int64(0)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "fifty"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: &no,
				Containers: []corev1.Container{{Name: "main", Image: "none.example/none:1", Resources: corev1.ResourceRequirements{
					Requests: amounts("cpu=10m", "memory=16Mi"),
				}}},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.ScheduleAnyway,
					LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
				}},
			}},
		},
	}
	if err := home.client.Create(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	available := func(ctx context.Context) error {
		if err := home.get(ctx, deployment.Name, deployment); err != nil {
			return err
		}
		if got := deployment.Status.AvailableReplicas; got != replicas {
			return fmt.Errorf("%d of %d are available", got, replicas)
		}
		return nil
	}
	if err := eventually.Is(t.Context(), later, "the Deployment", available); err != nil {
		t.Fatal(err)
	}
	pods, err := list[corev1.PodList](t.Context(), home, inNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	where := map[string]int{}
	for i := range pods.Items {
		where[pods.Items[i].Spec.NodeName]++
	}
	t.Logf("the pods are on %v", where)
	if where[nodeName] == 0 || where[nodeName] == replicas {
		t.Errorf("the Deployment does not run on both sides: %v", where)
	}
	unharmed(t, home, abroad, remote)
	again, err := list[corev1.PodList](t.Context(), home, inNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(uids(pods), uids(again)); diff != "" {
		t.Errorf("pods at home (-before +after):\n%s", diff)
	}
	if err := eventually.Is(t.Context(), soon, "the Deployment", available); err != nil {
		t.Error(err)
	}
	t.Run("and scaled down nothing is left abroad", func(t *testing.T) {
		zero := int32(0)
		deployment.Spec.Replicas = &zero
		if err := home.client.Patch(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "fifty"}},
			ctrlclient.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`))); err != nil {
			t.Fatal(err)
		}
		err := eventually.Is(t.Context(), later, "no pod anywhere", func(ctx context.Context) error {
			left, err := podsAbroad(ctx, abroad, remote)
			if err != nil {
				return err
			}
			local, err := list[corev1.PodList](ctx, home, inNamespace(namespace))
			if err != nil {
				return err
			}
			if len(left)+len(local.Items) > 0 {
				return fmt.Errorf("there are %d at home and %v abroad", len(local.Items), left)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func uids(pods corev1.PodList) map[string]string {
	out := map[string]string{}
	for i := range pods.Items {
		out[pods.Items[i].Name] = string(pods.Items[i].UID)
	}
	return out
}

func TestPodsBeyondTheContractWait(t *testing.T) {
	home, abroad := agents(t)
	peered(t, home, abroad, "cpu=1", "memory=1Gi", "pods=10")
	namespace, remote := offloaded(t, home, abroad)
	half := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("400m")}
	}
	var fit []*corev1.Pod
	for _, name := range []string{"one", "two"} {
		p := remotePod(namespace, name, half)
		if err := home.client.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := runs(t.Context(), home, p); err != nil {
			t.Fatal(err)
		}
		fit = append(fit, p)
	}
	over := remotePod(namespace, "three", half)
	if err := home.client.Create(t.Context(), over); err != nil {
		t.Fatal(err)
	}
	err := eventually.Is(t.Context(), soon, "the third pod to say why it waits", func(ctx context.Context) error {
		if err := home.get(ctx, over.Name, over); err != nil {
			return eventually.Permanent(err)
		}
		for _, c := range over.Status.Conditions {
			if c.Type == "entente.dev/Offloaded" && c.Status == corev1.ConditionFalse && c.Reason == "QuotaExceeded" && strings.Contains(c.Message, "cpu") {
				return nil
			}
		}
		return fmt.Errorf("it is %s: %s; %+v", over.Status.Phase, over.Status.Message, over.Status.Conditions)
	})
	if err != nil {
		t.Error(err)
	}
	err = eventually.Is(t.Context(), soon, "an event of it", func(ctx context.Context) error {
		events, err := list[corev1.EventList](ctx, home, inNamespace(namespace))
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.InvolvedObject.UID == over.UID && strings.Contains(e.Reason+e.Message, "Quota") {
				return nil
			}
			seen = append(seen, e.InvolvedObject.Name+": "+e.Reason+": "+e.Message)
		}
		return fmt.Errorf("there are only %q", seen)
	})
	if err != nil {
		t.Error(err)
	}
	there, err := podsAbroad(t.Context(), abroad, remote)
	if err != nil || len(there) != 2 {
		t.Errorf("abroad are %v, %v; want two", there, err)
	}
	if err := home.client.Delete(t.Context(), fit[0]); err != nil {
		t.Fatal(err)
	}
	if err := runs(t.Context(), home, over); err != nil {
		t.Errorf("there is room now, and: %v", err)
	}
}

func TestAPodThatEndedIsNotRunAgain(t *testing.T) {
	home, abroad := agents(t)
	peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	namespace, remote := offloaded(t, home, abroad)
	p := runsOnce(t, home, namespace)
	theirs := succeed(t, abroad, remote)
	succeeded := func(ctx context.Context) error {
		if err := home.get(ctx, p.Name, p); err != nil {
			return eventually.Permanent(err)
		}
		if p.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	}
	if err := eventually.Is(t.Context(), soon, "the pod to have succeeded at home", succeeded); err != nil {
		t.Fatal(err)
	}
	unharmed(t, home, abroad, remote)
	// Clusters clear away pods that ended.
	if err := abroad.client.Delete(t.Context(), theirs, ctrlclient.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	if err := eventually.Is(t.Context(), soon, "the pod abroad to be gone", func(ctx context.Context) error {
		left, err := podsAbroad(ctx, abroad, remote)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there is %v", left)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	unharmed(t, home, abroad, remote)
	if err := succeeded(t.Context()); err != nil {
		t.Errorf("at home: %v", err)
	}
}

func TestAPodOfTheSameNameIsAnotherPod(t *testing.T) {
	home, abroad := agents(t)
	peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	namespace, remote := offloadedBy(t, home, abroad, v1alpha1.StrategyRemote)
	n, no := int32(3), int64(0)
	labels := map[string]string{"app": "set"}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "set"}, Spec: appsv1.StatefulSetSpec{
		Replicas: &n, ServiceName: "set", PodManagementPolicy: appsv1.ParallelPodManagement, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &no, Containers: []corev1.Container{{Name: "main", Image: "none.example/none:1"}},
		}},
	}}
	if err := home.client.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	ready := func(ctx context.Context) error {
		if err := home.get(ctx, set.Name, set); err != nil {
			return err
		}
		if set.Status.ReadyReplicas != n {
			return fmt.Errorf("%d of %d are ready", set.Status.ReadyReplicas, n)
		}
		return nil
	}
	if err := eventually.Is(t.Context(), later, "the StatefulSet", ready); err != nil {
		t.Fatal(err)
	}
	before, err := podsAbroad(t.Context(), abroad, remote)
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != int(n) {
		t.Fatalf("abroad are %v", before)
	}
	for round := range 3 {
		p := pod(namespace, "set-1", nil)
		if err := home.get(t.Context(), p.Name, p); err != nil {
			t.Fatal(err)
		}
		old := p.UID
		if err := home.client.Delete(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		err := eventually.Is(t.Context(), later, "another set-1 to run", func(ctx context.Context) error {
			if err := home.get(ctx, p.Name, p); err != nil {
				return err
			}
			if p.UID == old || p.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("it is %s, the old one: %t", p.Status.Phase, p.UID == old)
			}
			pods, err := list[corev1.PodList](ctx, abroad, inNamespace(remote), ctrlclient.MatchingLabels{v1alpha1.LabelOriginUID: string(p.UID)})
			if err == nil && len(pods.Items) != 1 {
				err = fmt.Errorf("%d pods abroad represent it", len(pods.Items))
			}
			return err
		})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	after, err := podsAbroad(t.Context(), abroad, remote)
	if err != nil {
		t.Fatal(err)
	}
	same := 0
	for name, uid := range after {
		if before[name] == uid {
			same++
		}
	}
	if len(after) != int(n) || same != int(n)-1 {
		t.Errorf("abroad were %v and are %v; want one other", before, after)
	}
}

// offloadedBy is offloaded with a strategy.
func offloadedBy(t *testing.T, home, abroad *cluster, s v1alpha1.PodStrategy) (namespace, remote string) {
	t.Helper()
	namespace, remote = offloaded(t, home, abroad)
	o := offloadingOf(namespace, nil)
	patch := fmt.Appendf(nil, `{"spec":{"podStrategy":%q}}`, s)
	if err := home.client.Patch(t.Context(), o, ctrlclient.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
	err := eventually.Is(t.Context(), soon, "strategy "+string(s), func(ctx context.Context) error {
		probe := pod(namespace, "probe", nil)
		if err := home.client.Create(ctx, probe, ctrlclient.DryRunAll); err != nil {
			return err
		}
		if s == v1alpha1.StrategyRemote && probe.Spec.Affinity == nil {
			return errors.New("pods are not bound to virtual nodes yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return namespace, remote
}

func TestConfigurationFollowsThePod(t *testing.T) {
	home, abroad := agents(t)
	peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	namespace, remote := offloaded(t, home, abroad)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "config"}, Data: map[string]string{"v": "1"}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "secret"}, Data: map[string][]byte{"v": []byte("1")}}
	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other"}, Data: map[string][]byte{"v": []byte("private")}}
	for _, o := range []ctrlclient.Object{config, secret, other} {
		if err := home.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	p := remotePod(namespace, "reader", func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}}
		p.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "s", MountPath: "/s"}}
	})
	if err := home.client.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := runs(t.Context(), home, p); err != nil {
		t.Fatal(err)
	}
	says := func(want string) error {
		return eventually.Is(t.Context(), soon, "version "+want+" abroad", func(ctx context.Context) error {
			var c corev1.ConfigMap
			var s corev1.Secret
			c.Namespace, s.Namespace = remote, remote
			if err := errors.Join(abroad.get(ctx, "config", &c), abroad.get(ctx, "secret", &s)); err != nil {
				return err
			}
			if c.Data["v"] != want || string(s.Data["v"]) != want {
				return fmt.Errorf("the ConfigMap says %q and the Secret %q", c.Data["v"], s.Data["v"])
			}
			return nil
		})
	}
	if err := says("1"); err != nil {
		t.Fatal(err)
	}
	change := func(version string) {
		t.Helper()
		config.Data["v"], secret.Data["v"] = version, []byte(version)
		if err := errors.Join(home.client.Update(t.Context(), config), home.client.Update(t.Context(), secret)); err != nil {
			t.Fatal(err)
		}
	}
	change("2")
	if err := says("2"); err != nil {
		t.Error(err)
	}
	home.kill()
	change("3")
	if err := home.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := says("3"); err != nil {
		t.Errorf("changed while the agent was dead: %v", err)
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: remote}}
	if err := abroad.get(t.Context(), "other", s); ctrlclient.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the Secret that no pod refers to is abroad: %v", err)
	}
	policyFollows(t, home, abroad, namespace, remote)
}

// TestARefusedNamespaceIsReported: a namespace that wants to keep its name abroad, or have
// another one, may do so if the provider lists the name and has no such namespace itself,
// and what is wrong is to be read at home.
func TestARefusedNamespaceIsReported(t *testing.T) {
	home, abroad := agents(t)
	taken := newNamespace(t, abroad, "taken")
	policy := offer(t, abroad, "cpu=4", "memory=8Gi", "pods=20")
	patch := fmt.Appendf(nil, `{"spec":{"namespaceNames":[%q]}}`, taken)
	if err := abroad.client.Patch(t.Context(), policy, ctrlclient.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
	peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: taken}}
	if err := home.client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, home, ns) })
	same := func(o *v1alpha1.NamespaceOffloading) { o.Spec.NameMapping = v1alpha1.MappingSame }
	listed := offloadingOf(taken, same)
	unlisted := offloadingOf(newNamespace(t, home, "unlisted"), same)
	named := "rome-" + taken
	chosen := offloadingOf(newNamespace(t, home, "chosen"), func(o *v1alpha1.NamespaceOffloading) {
		o.Spec.NameMapping, o.Spec.RemoteName = v1alpha1.MappingChosen, named
	})
	offload(t, home, listed)
	offload(t, home, unlisted)
	offload(t, home, chosen)
	state := func(o *v1alpha1.NamespaceOffloading, want, why string) error {
		return eventually.Is(t.Context(), later, "namespace "+o.Namespace+" to be "+want, func(ctx context.Context) error {
			if err := home.get(ctx, o.Name, o); err != nil {
				return eventually.Permanent(err)
			}
			if c := o.Status.Clusters; len(c) != 1 || c[0].ForeignCluster != abroadName || c[0].State != want || !strings.Contains(c[0].Message, why) {
				return fmt.Errorf("its status is %+v", o.Status)
			}
			return nil
		})
	}
	if err := state(unlisted, "Refused", "namespaceNames"); err != nil {
		t.Error(err)
	}
	if err := state(listed, "Refused", "not the consumer's"); err != nil {
		t.Fatal(err)
	}
	if err := state(chosen, "Refused", "may not be called "+named); err != nil {
		t.Error(err)
	}
	theirs := &corev1.Namespace{}
	if err := abroad.get(t.Context(), taken, theirs); err != nil || theirs.Labels[v1alpha1.LabelManaged] != "" {
		t.Errorf("a foreign namespace was changed: %v, %v", theirs.Labels, err)
	}
	// The owner allows the name.
	patch = fmt.Appendf(nil, `{"spec":{"namespaceNames":[%q,%q,"rome-*"]}}`, taken, unlisted.Namespace)
	if err := abroad.client.Patch(t.Context(), policy, ctrlclient.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
	if err := state(unlisted, "Ready", ""); err != nil {
		t.Errorf("the policy lists the name now: %v", err)
	}
	if err := state(chosen, "Ready", ""); err != nil || chosen.Status.Clusters[0].RemoteName != named {
		t.Errorf("the policy gives such names now: %v, %+v", err, chosen.Status)
	}
	if err := abroad.get(t.Context(), named, &corev1.Namespace{}); err != nil {
		t.Errorf("the namespace is not called what was chosen: %v", err)
	}
	// The owner makes room.
	if err := abroad.client.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if err := state(listed, "Ready", ""); err != nil {
		t.Errorf("the name is free now: %v", err)
	}
}

// runsOnce returns a pod that runs abroad, and is not started again when it ends.
func runsOnce(t *testing.T, home *cluster, namespace string) *corev1.Pod {
	t.Helper()
	p := remotePod(namespace, "once", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	if err := home.client.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := runs(t.Context(), home, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// succeed has the one pod of a namespace abroad end.
func succeed(t *testing.T, abroad *cluster, remote string) *corev1.Pod {
	t.Helper()
	pods, err := list[corev1.PodList](t.Context(), abroad, inNamespace(remote))
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("abroad are %d pods, %v", len(pods.Items), err)
	}
	theirs := &pods.Items[0]
	theirs.Status.Phase = corev1.PodSucceeded
	now := metav1.Now()
	for i := range theirs.Status.ContainerStatuses {
		theirs.Status.ContainerStatuses[i].Ready = false
		theirs.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now, StartedAt: now}}
	}
	if err := abroad.client.Status().Update(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	return theirs
}
