package doctor

import (
	"bytes"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// What the agent wrote stays after it stopped, so that alone must not count as healthy.
func TestDoctorReportsThatNoAgentRuns(t *testing.T) {
	t.Parallel()
	pod := func(name string, ready corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: name, Labels: map[string]string{"app.kubernetes.io/name": "entente", "app.kubernetes.io/component": "agent"}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	ending := pod("ending", corev1.ConditionTrue)
	ending.DeletionTimestamp, ending.Finalizers = &metav1.Time{Time: epoch}, []string{"x"}
	other := pod("other", corev1.ConditionTrue)
	other.Labels["app.kubernetes.io/component"] = "fabric"
	for name, tc := range map[string]struct {
		pods      []runtime.Object
		forbidden bool
		want      string
		severity  string
	}{
		"one is ready":     {pods: []runtime.Object{pod("a", corev1.ConditionFalse), pod("b", corev1.ConditionTrue)}},
		"none is ready":    {pods: []runtime.Object{pod("a", corev1.ConditionFalse)}, want: reasonAgentNotRunning, severity: Error},
		"no replicas":      {pods: []runtime.Object{other}, want: reasonAgentNotRunning, severity: Error},
		"the last one":     {pods: []runtime.Object{ending}, want: reasonAgentNotRunning, severity: Error},
		"without a right":  {forbidden: true, want: reasonAgentNotChecked, severity: Info},
		"ready and ending": {pods: []runtime.Object{ending, pod("b", corev1.ConditionTrue)}},
	} {
		c := fake.NewClientset(tc.pods...)
		if tc.forbidden {
			c.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", nil)
			})
		}
		is := Report{Namespace: "entente-system", Agent: agentFault(t.Context(), c, "entente-system")}
		found := Findings(is, AreaPeers, epoch)
		if tc.want == "" && len(found) > 0 || tc.want != "" && (len(found) != 1 || found[0].Reason != tc.want || found[0].Severity != tc.severity || !strings.Contains(found[0].Message+found[0].Remedy, "entente-system")) {
			t.Errorf("%s: found %+v, want %q", name, found, tc.want)
		}
	}
}

func TestDoctorNamesTheNamespaceInWhichEntenteIs(t *testing.T) {
	t.Parallel()
	pod := func(namespace string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent", Labels: map[string]string{"app.kubernetes.io/name": "entente", "app.kubernetes.io/component": "agent"}}}
	}
	for name, tc := range map[string]struct {
		pods      []runtime.Object
		forbidden bool
		want      string
	}{
		"in another one":   {pods: []runtime.Object{pod("infra")}, want: "--entente-namespace infra"},
		"in two":           {pods: []runtime.Object{pod("infra"), pod("apps")}, want: "--entente-namespace apps"},
		"here, too":        {pods: []runtime.Object{pod("infra"), pod("entente-system")}, want: "scale deployment"},
		"in none":          {want: "scale deployment"},
		"in this one only": {pods: []runtime.Object{pod("entente-system")}, want: "scale deployment"},
		"not known":        {pods: []runtime.Object{pod("infra")}, forbidden: true, want: "is named by --entente-namespace"},
	} {
		c := fake.NewClientset(tc.pods...)
		c.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if tc.forbidden && a.GetNamespace() == "" {
				return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", nil)
			}
			return false, nil, nil
		})
		is := Report{Namespace: "entente-system", Agent: agentFault(t.Context(), c, "entente-system")}
		is.Elsewhere = agentsElsewhere(t.Context(), c, is.Namespace)
		if found := Findings(is, AreaPeers, epoch); len(found) != 1 || found[0].Reason != reasonAgentNotRunning || !strings.Contains(found[0].Remedy, tc.want) {
			t.Errorf("%s: found %+v, want %q", name, found, tc.want)
		}
	}
}

func TestEachReasonOfTheAgentIsExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{reasonAgentNotRunning, reasonAgentNotChecked} {
		if !bytes.Contains(page, []byte("\n### `"+reason+"`\n")) {
			t.Errorf("docs/troubleshooting.md does not explain %s", reason)
		}
	}
}
