package records

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/charttest"
	"github.com/entente-dev/entente/internal/kube"
)

// TestARecordIsSmallOnARealAPIServer writes and watches a record, in whose managed fields neither its template nor the
// status of its pod has fields.
func TestARecordIsSmallOnARealAPIServer(t *testing.T) {
	server := charttest.StartAPIServer(t)
	other, err := client.NewWithWatch(server.Owner, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(other, server.Owner)
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.Watch(t.Context(), &api.OffloadedPodList{}, client.InNamespace("default"))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	o := record("web-0")
	o.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: "web-0"}
	o.Spec.Requests = corev1.ResourceList{}
	o.Spec.Template = runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[{"name":"app","image":"registry.example/app"}]}}`)}
	o.Status = api.OffloadedPodStatus{}
	if err := c.Create(t.Context(), o, client.FieldOwner(api.Manager)); err != nil {
		t.Fatal(err)
	}
	o.Status = api.OffloadedPodStatus{PodUID: "p", PodStatus: &runtime.RawExtension{Raw: []byte(`{"phase":"Failed","message":"m"}`)}}
	if err := c.Status().Update(t.Context(), o, client.FieldOwner(api.Manager)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified} {
		e := <-events.ResultChan()
		got, ok := e.Object.(*api.OffloadedPod)
		if !ok || e.Type != want || got.UID != o.UID || !strings.Contains(string(got.Spec.Template.Raw), "registry.example/app") {
			t.Fatalf("an event is %s %+v, want it %s", e.Type, e.Object, want)
		}
		fields := ""
		for _, m := range got.ManagedFields {
			fields += m.FieldsV1.GetRawString()
		}
		if !strings.Contains(fields, `"f:template":{}`) || strings.Contains(fields, "f:containers") || strings.Contains(fields, "f:message") {
			t.Errorf("its managed fields are %s", fields)
		}
		if want == watch.Modified && got.Status.PodUID != "p" {
			t.Errorf("its status is %+v", got.Status)
		}
	}
}
