package places

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestBrowsedReadsTheAgentsFlags(t *testing.T) {
	t.Parallel()
	pod := func(name string, age time.Duration, args ...string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ours", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
				Labels: map[string]string{"app.kubernetes.io/name": "entente", "app.kubernetes.io/component": "agent"},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Args: args}}},
		}
	}
	other := pod("other", 0, "--discovery-lan")
	other.Labels = nil
	clients := fake.NewClientset(other, pod("old", time.Hour, "agent", "--discovery-lan"),
		pod("new", time.Minute, "agent", "--discovery-resolver=192.0.2.1", "--discovery-domain=Example.com.", "--discovery-domain=example.org"))
	got, err := Browsed(t.Context(), clients, "ours")
	if err != nil || got.LAN || !slices.Equal(got.Domains, []string{"example.com", "example.org"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := Browsed(t.Context(), clients, "another"); err == nil {
		t.Errorf("without an agent: got %+v", got)
	}
}
