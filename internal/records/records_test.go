package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// against returns a client of an API server that responds as serve does, and reads all else from a fake.
func against(t *testing.T, serve http.HandlerFunc, objects ...client.Object) Client {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), api.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	other := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(objects...).Build()
	c, err := New(other, &rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func record(name string) *api.OffloadedPod {
	return &api.OffloadedPod{
		TypeMeta:   metav1.TypeMeta{APIVersion: api.GroupVersion.String(), Kind: "OffloadedPod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "v"}},
		Spec:       api.OffloadedPodSpec{Contract: "c", Template: runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[]}}`)}},
		Status:     api.OffloadedPodStatus{PodUID: "p", Phase: corev1.PodRunning},
	}
}

func TestAWatchHasEachEvent(t *testing.T) {
	t.Parallel()
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/apis/entente.dev/v1alpha1/offloadedpods" || q.Get("watch") != "true" || q.Get("resourceVersion") != "5" || q.Get("labelSelector") != "a=b" {
			t.Errorf("it asks for %s", r.URL)
		}
		for kind, o := range []any{record("web-0"), record("web-1"), record("web-2"), record("")} {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": []string{"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}[kind], "object": o})
		}
		_, _ = fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}}`)
		_, _ = fmt.Fprint(w, `{"type":"ADDED","object":{"spec":7}}`)
	})
	events, err := c.Watch(t.Context(), &api.OffloadedPodList{}, client.MatchingLabels{"a": "b"}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "5"}})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	var got []watch.Event
	for e := range events.ResultChan() {
		got = append(got, e)
	}
	if len(got) != 6 {
		t.Fatalf("it has %d events, want 6: %v", len(got), got)
	}
	want := []watch.Event{
		{Type: watch.Added, Object: record("web-0")},
		{Type: watch.Modified, Object: record("web-1")},
		{Type: watch.Deleted, Object: record("web-2")},
		{Type: watch.Bookmark, Object: record("")},
	}
	if diff := cmp.Diff(want, got[:4]); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if err := apierrors.FromObject(got[4].Object); got[4].Type != watch.Error || !apierrors.IsResourceExpired(err) {
		t.Errorf("an error is %s %v", got[4].Type, err)
	}
	if err := apierrors.FromObject(got[5].Object); got[5].Type != watch.Error || !apierrors.IsInternalError(err) {
		t.Errorf("a malformed event is %s %v", got[5].Type, err)
	}
}

func TestAStatusIsWrittenAlone(t *testing.T) {
	t.Parallel()
	answer, code := `{"kind":"OffloadedPod","metadata":{"resourceVersion":"8"}}`, http.StatusOK
	c := against(t, func(w http.ResponseWriter, r *http.Request) {
		var sent map[string]any
		body, err := io.ReadAll(r.Body)
		if err = errors.Join(err, json.Unmarshal(body, &sent)); err != nil {
			t.Error(err)
		}
		if r.Method != http.MethodPut || r.URL.String() != "/apis/entente.dev/v1alpha1/namespaces/shop/offloadedpods/web-0/status?fieldManager=entente" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("it sends %s %s, %s", r.Method, r.URL, r.Header)
		}
		meta := map[string]any{"namespace": "shop", "name": "web-0", "uid": "u", "resourceVersion": "7"}
		if diff := cmp.Diff(meta, sent["metadata"]); diff != "" {
			t.Errorf("it sends metadata (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]any{"podUID": "p", "phase": "Running"}, sent["status"]); diff != "" {
			t.Errorf("it sends a status (-want +got):\n%s", diff)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = fmt.Fprint(w, answer)
	})
	o := record("web-0")
	if err := c.Status().Update(t.Context(), o, client.FieldOwner("entente")); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(record("web-0"), o); diff != "" {
		t.Errorf("what was written changed (-want +got):\n%s", diff)
	}
	answer, code = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`, http.StatusConflict
	if err := c.Status().Update(t.Context(), o, client.FieldOwner("entente")); !apierrors.IsConflict(err) {
		t.Errorf("a conflict is %v", err)
	}
}

func TestOtherObjectsAreLeftToTheClient(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"}}
	c := against(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("it asks for %s", r.URL) }, pod)
	events, err := c.Watch(t.Context(), &corev1.PodList{})
	if err != nil {
		t.Fatal(err)
	}
	events.Stop()
	pod.Status.Phase = corev1.PodRunning
	if err := c.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	var now corev1.Pod
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), &now); err != nil || now.Status.Phase != corev1.PodRunning {
		t.Errorf("its phase is %q, %v", now.Status.Phase, err)
	}
}
