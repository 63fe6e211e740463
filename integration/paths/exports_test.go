package paths

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/mcs-api/config/crd"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

const (
	// bazaar is the namespace that all three clusters share, and whose Services each exports to both others.
	bazaar = "bazaar"
	hello  = "hello"
	// settled is for how long nothing may be written once all is as it should be.
	settled = 30 * time.Second
	// derivedService is the annotation of a ServiceImport that names the Service with its address.
	derivedService = "multicluster.kubernetes.io/derived-service"
	// exportsKind and importsKind are the definitions of the Multi-Cluster Services API.
	exportsKind, importsKind = "crd/serviceexports.multicluster.x-k8s.io", "crd/serviceimports.multicluster.x-k8s.io"
)

func multicluster(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "multicluster.x-k8s.io", Version: "v1beta1", Kind: kind}
}

// TestThreeClustersThatExportOneServiceToEachOtherMakeNoLoop has each of three clusters export all Services of a namespace
// to both others, import the others' under names in that same namespace, and export these imports again. No cluster has
// more objects than its exports and imports, none is written again once all is there or when an agent starts again, and none
// outlives the export that it came from.
func TestThreeClustersThatExportOneServiceToEachOtherMakeNoLoop(t *testing.T) {
	only.Matrix(t, "seven minutes; internal/clusterset and internal/services have that what is imported is not exported")
	ctx, w := onStage(t)
	w.sharesServices(ctx, t)
	e2e.OK(t, w.Each(ctx, func(ctx context.Context, side *e2e.Side) error { return w.exportsAll(ctx, side) }))
	pairs := []e2e.Pair{{w.rome, w.milan}, {w.milan, w.oslo}, {w.oslo, w.rome}}
	for _, p := range pairs {
		e2e.OK(t, w.joined(ctx, p[0], p[1]))
		for _, way := range p.Ways() {
			_, err := way[0].Entente(ctx, "peer", way[1].Name, "--pods", "0")
			e2e.OK(t, err)
		}
	}
	e2e.OK(t, w.BothWays(ctx, e2e.Restarted, func(string) {}, pairs...))

	all := w.reachedFromEverywhere(ctx, t)
	was := map[*e2e.Side]bazaarObjects{}
	t.Run("each has what it exports and imports, and nothing else", func(t *testing.T) {
		for _, side := range w.Sides() {
			was[side] = w.hasExpected(ctx, t, side, 3)
		}
	})
	t.Run("nothing is written while nothing changes", func(t *testing.T) { w.nothingIsWritten(ctx, t) })
	t.Run("an agent that starts again makes nothing again", func(t *testing.T) {
		e2e.OK(t, w.milan.KillAgent(ctx))
		e2e.OK(t, w.milan.AgentReady(ctx, e2e.Restarted))
		e2e.OK(t, w.BothWays(ctx, e2e.Restarted, func(string) {}, pairs...))
		w.nothingIsWritten(ctx, t)
		for _, side := range w.Sides() {
			if now := w.hasExpected(ctx, t, side, 3); !maps.Equal(now.uids(), was[side].uids()) {
				t.Errorf("%s had %v, and has %v", side.Name, was[side].uids(), now.uids())
			}
		}
		w.reachedFromEverywhere(ctx, t)
	})
	t.Run("its own pods come first where the exports say so", func(t *testing.T) { w.ownFirst(ctx, t, all) })
	t.Run("the nearest pods come first where the exports say so", func(t *testing.T) { w.nearest(ctx, t, all) })
	t.Run("what is no longer exported is kept by no other cluster", func(t *testing.T) {
		e2e.OK(t, w.oslo.Client.Delete(ctx, object("ServiceExport", hello)))
		for _, side := range w.Sides() {
			w.hasExpected(ctx, t, side, 2)
		}
		for _, side := range []*e2e.Side{w.rome, w.milan} {
			e2e.OK(t, side.Client.Delete(ctx, object("ServiceExport", hello)))
		}
		for _, side := range w.Sides() {
			w.hasExpected(ctx, t, side, 0)
		}
		_, err := w.oslo.Kubectl(ctx, "-n", bazaar, "delete", "service", hello)
		e2e.OK(t, err)
		e2e.OK(t, w.rome.ReachesAll(ctx, e2e.Soon, bazaar, all[0].Name, "http://from-milan:8080/name", all[1:2]))
		for _, side := range []*e2e.Side{w.rome, w.milan} {
			e2e.OK(t, w.Until(ctx, e2e.Restarted, side.Name+" to import nothing of oslo", func(ctx context.Context) (string, error) {
				now, err := side.ReadyEndpoints(ctx, bazaar, "from-oslo")
				if err == nil && len(now) > 0 {
					return fmt.Sprintf("it imports %v", now), nil
				}
				return "", err
			}))
		}
	})
}

// object is an object of the Multi-Cluster Services API.
func object(kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(multicluster(kind))
	o.SetNamespace(bazaar)
	o.SetName(name)
	return o
}

// sharesServices has all clusters share a namespace, until the test ends.
func (w *world) sharesServices(ctx context.Context, t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		after := context.WithoutCancel(ctx)
		e2e.OK(t, w.apart(after))
		e2e.OK(t, w.Each(after, func(ctx context.Context, side *e2e.Side) error {
			side.Values = nil
			policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a-bazaar"}}
			_, err := side.Kubectl(ctx, "delete", "namespace", bazaar, "--ignore-not-found", "--timeout=2m")
			_, kinds := side.Kubectl(ctx, "delete", exportsKind, importsKind, "--ignore-not-found")
			return errors.Join(err, kinds, ctrlclient.IgnoreNotFound(side.Client.Delete(ctx, policy)), w.Install(ctx, side))
		}))
	})
	kinds := t.TempDir()
	for name, text := range map[string][]byte{"exports.yaml": crd.ServiceExportCRD, "imports.yaml": crd.ServiceImportCRD} {
		e2e.OK(t, os.WriteFile(filepath.Join(kinds, name), text, 0o600))
	}
	e2e.OK(t, w.Each(ctx, func(ctx context.Context, side *e2e.Side) error {
		if _, err := side.Kubectl(ctx, "apply", "-f", kinds); err != nil {
			return err
		}
		if _, err := side.Kubectl(ctx, "wait", "--for=condition=Established", exportsKind, importsKind); err != nil {
			return err
		}
		if err := side.CreateNamespace(ctx, bazaar); err != nil {
			return err
		}
		policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a-bazaar"}}
		policy.Spec.ClusterSet = &v1alpha1.ClusterSet{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: bazaar}}}
		policy.Spec.Services = []v1alpha1.ServiceExports{{Namespace: bazaar}}
		if err := side.Client.Create(ctx, policy); err != nil {
			return err
		}
		side.Values = []string{"multiclusterServices.enabled=true"}
		return w.Install(ctx, side)
	}))
}

// exportsAll has a cluster export its hello, import that of both others, and export its imports.
func (w *world) exportsAll(ctx context.Context, side *e2e.Side) error {
	d, service := e2e.Web(bazaar, hello, 1, e2e.Anywhere)
	if err := side.Create(ctx, d, service, object("ServiceExport", hello)); err != nil {
		return err
	}
	for _, other := range w.Sides() {
		if other == side {
			continue
		}
		name := "from-" + other.Name
		if err := side.Create(ctx, object("ServiceExport", name), &v1alpha1.ImportedService{
			ObjectMeta: metav1.ObjectMeta{Namespace: bazaar, Name: name, Labels: service.Labels},
			Spec:       v1alpha1.ImportedServiceSpec{ForeignCluster: other.Name, Service: v1alpha1.ServiceReference{Namespace: bazaar, Name: hello}},
		}); err != nil {
			return err
		}
	}
	return nil
}

// reachedFromEverywhere waits until the pod of each cluster reaches those of all by the ServiceImport's Service, and those
// of each other one by the import of it. It returns the pods in the order of the clusters.
func (w *world) reachedFromEverywhere(ctx context.Context, t *testing.T) (all []corev1.Pod) {
	t.Helper()
	for _, side := range w.Sides() {
		pods, err := side.PodsReady(ctx, e2e.Scheduled, bazaar, map[string]string{"app": hello}, 1)
		e2e.OK(t, err)
		all = append(all, pods...)
	}
	for i, side := range w.Sides() {
		imported := object("ServiceImport", hello)
		e2e.OK(t, w.Until(ctx, e2e.Restarted, side.Name+" to have a ServiceImport with a Service", func(ctx context.Context) (string, error) {
			err := side.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(imported), imported)
			if err == nil && imported.GetAnnotations()[derivedService] == "" {
				return "it has none", nil
			}
			return "", err
		}))
		e2e.OK(t, side.ReachesAll(ctx, e2e.Restarted, bazaar, all[i].Name, "http://"+imported.GetAnnotations()[derivedService]+":8080/name", all))
		for j, other := range w.Sides() {
			if other != side {
				e2e.OK(t, side.ReachesAll(ctx, e2e.Restarted, bazaar, all[i].Name, "http://from-"+other.Name+":8080/name", all[j:j+1]))
			}
		}
	}
	return all
}

// ownFirst has the exports prefer a cluster's own endpoints: the ServiceImport's Service then leads from each cluster to its
// own pod alone, from one without a pod to those of both others, and to its own again once it has one.
func (w *world) ownFirst(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	w.exportsPrefer(ctx, t, "OwnFirst")
	w.hasClients(ctx, t)
	for i, side := range w.Sides() {
		w.reachesOnly(ctx, t, side, pods[i].Name)
	}
	w.scale(ctx, t, 0)
	w.reachesOnly(ctx, t, w.rome, pods[1].Name, pods[2].Name)
	for i, side := range w.Sides()[1:] {
		w.reachesOnly(ctx, t, side, pods[i+1].Name)
	}
	pods[0] = w.scale(ctx, t, 1)[0]
	w.reachesOnly(ctx, t, w.rome, pods[0].Name)
}

// nearest has the exports prefer the nearest endpoints, while packets between rome and one of the others, then the other one,
// are slow: rome without a pod reaches that of the cluster whose packets are not, and its own alone once it has one.
func (w *world) nearest(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	w.hasClients(ctx, t)
	w.scale(ctx, t, 0)
	t.Cleanup(func() { e2e.OK(t, w.Heal(context.WithoutCancel(ctx))) })
	for far, near := range map[*e2e.Side]string{w.oslo: pods[1].Name, w.milan: pods[2].Name} {
		e2e.OK(t, w.Heal(ctx))
		_, err := w.Lab.Fault(ctx, lab.FaultRequest{Kind: "delay", A: w.rome.Plan.Name, B: far.Plan.Name, Delay: 40 * time.Millisecond})
		e2e.OK(t, err)
		e2e.OK(t, w.Until(ctx, e2e.Restarted, "rome to reach the pod that is not in "+far.Name, func(ctx context.Context) (string, error) {
			w.exportsPrefer(ctx, t, "Nearest") // a change, at which distances are compared
			return w.reachesOthers(ctx, w.rome, near)
		}))
	}
	pods[0] = w.scale(ctx, t, 1)[0]
	w.reachesOnly(ctx, t, w.rome, pods[0].Name)
}

// exportsPrefer has the exports of all clusters prefer endpoints, and changes them even if they do already.
func (w *world) exportsPrefer(ctx context.Context, t *testing.T, endpoints string) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"exportedAnnotations":{"entente.dev/endpoints":%q,"example.com/changed":"%d"}}}`, endpoints, time.Now().UnixMilli())
	for _, side := range w.Sides() {
		e2e.OK(t, side.Client.Patch(ctx, object("ServiceExport", hello), ctrlclient.RawPatch(types.MergePatchType, []byte(patch))))
	}
}

// client is a pod of each cluster that asks, and does not answer.
const client = "client"

// hasClients starts a client in each cluster, until the test ends.
func (w *world) hasClients(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, side := range w.Sides() {
		d, _ := e2e.Web(bazaar, client, 1, e2e.Anywhere)
		e2e.OK(t, side.Client.Create(ctx, d))
		t.Cleanup(func() {
			_, err := side.Kubectl(context.WithoutCancel(ctx), "-n", bazaar, "delete", "deployment", client, "--cascade=foreground")
			e2e.OK(t, err)
		})
	}
}

// scale has rome run so many pods that answer, and returns them.
func (w *world) scale(ctx context.Context, t *testing.T, replicas int) []corev1.Pod {
	t.Helper()
	_, err := w.rome.Kubectl(ctx, "-n", bazaar, "scale", "deployment/"+hello, fmt.Sprintf("--replicas=%d", replicas))
	e2e.OK(t, err)
	now, err := w.rome.PodsReady(ctx, e2e.Scheduled, bazaar, map[string]string{"app": hello}, replicas)
	e2e.OK(t, err)
	return now
}

// reachesOnly waits until a cluster's client reaches by the ServiceImport's Service these pods, and no other.
func (w *world) reachesOnly(ctx context.Context, t *testing.T, side *e2e.Side, want ...string) {
	t.Helper()
	e2e.OK(t, w.Until(ctx, e2e.Restarted, fmt.Sprintf("%s to reach only %v", side.Name, want), func(ctx context.Context) (string, error) {
		return w.reachesOthers(ctx, side, want...)
	}))
}

// reachesOthers returns what a cluster's client reaches by the ServiceImport's Service if that is not just these pods.
func (w *world) reachesOthers(ctx context.Context, side *e2e.Side, want ...string) (string, error) {
	from, err := side.PodsReady(ctx, e2e.Scheduled, bazaar, map[string]string{"app": client}, 1)
	if err != nil {
		return "", err
	}
	imported := object("ServiceImport", hello)
	if err := side.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(imported), imported); err != nil {
		return "", err
	}
	answers, err := side.Answers(ctx, bazaar, from[0].Name, 20, "http://"+imported.GetAnnotations()[derivedService]+":8080/name")
	if err != nil {
		return "", err
	}
	got := map[string]bool{}
	for answer := range answers {
		name, _, _ := strings.Cut(answer, " ")
		got[name] = true
	}
	slices.Sort(want)
	if reached := slices.Sorted(maps.Keys(got)); !slices.Equal(reached, want) {
		return fmt.Sprintf("it reaches %v", reached), nil
	}
	return "", nil
}

// bazaarObjects are the objects of one cluster in the shared namespace, by kind and name.
type bazaarObjects map[string]metav1.Object

func (b bazaarObjects) uids() map[string]string {
	out := map[string]string{}
	for name, o := range b {
		out[name] = string(o.GetUID())
	}
	return out
}

// versions are the objects with their versions, which each write changes.
func (b bazaarObjects) versions() map[string]string {
	out := map[string]string{}
	for name, o := range b {
		out[name] = string(o.GetUID()) + " " + o.GetResourceVersion()
	}
	return out
}

// objectsIn lists what exports and imports make.
func objectsIn(ctx context.Context, side *e2e.Side) (bazaarObjects, error) {
	out := bazaarObjects{}
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("Service"), discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
		multicluster("ServiceImport"), multicluster("ServiceExport"), v1alpha1.GroupVersion.WithKind("ImportedService"),
	} {
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := side.Client.List(ctx, &list, ctrlclient.InNamespace(bazaar)); err != nil {
			return nil, err
		}
		for i := range list.Items {
			out[kind.Kind+" "+list.Items[i].GetName()] = &list.Items[i]
		}
	}
	return out, nil
}

// hasExpected waits until a cluster has what it exports and imports, and nothing else, while so many clusters export
// hello to the set.
func (w *world) hasExpected(ctx context.Context, t *testing.T, side *e2e.Side, exporters int) (now bazaarObjects) {
	t.Helper()
	// Its own, one for each ImportedService, and those of the set.
	want := map[string]int{"Service": 3, "EndpointSlice": 3 + exporters, "ServiceImport": 0}
	if exporters > 0 {
		want["Service"]++
		want["ServiceImport"]++
	}
	e2e.OK(t, w.Until(ctx, e2e.Restarted, fmt.Sprintf("%s to have %v", side.Name, want), func(ctx context.Context) (missing string, err error) {
		if now, err = objectsIn(ctx, side); err != nil {
			return "", err
		}
		have := map[string]int{"Service": 0, "EndpointSlice": 0, "ServiceImport": 0}
		for name := range now {
			if kind, _, _ := strings.Cut(name, " "); want[kind] > 0 || kind == "ServiceImport" {
				have[kind]++
			}
		}
		if !maps.Equal(have, want) {
			return fmt.Sprintf("it has %v: %v", have, slices.Sorted(maps.Keys(now))), nil
		}
		return "", nil
	}))
	return now
}

// nothingIsWritten waits until no object in the shared namespace is written, and checks that none is for a while.
func (w *world) nothingIsWritten(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, side := range w.Sides() {
		var before map[string]string
		since := time.Now()
		e2e.OK(t, w.Until(ctx, e2e.Restarted, "nothing in "+side.Name+" to be written for "+settled.String(), func(ctx context.Context) (string, error) {
			objects, err := objectsIn(ctx, side)
			if err != nil {
				return "", err
			}
			now := objects.versions()
			if !maps.Equal(now, before) {
				was := before
				before, since = now, time.Now()
				return fmt.Sprintf("there was %v, and is %v", was, now), nil
			}
			if time.Since(since) < settled {
				return "it is too early to tell", nil
			}
			return "", nil
		}))
	}
}
