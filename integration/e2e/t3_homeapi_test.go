package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// TestAPodAbroadAsksTheAPIOfItsHome has a pod abroad ask for itself and watch, as any client in a
// cluster does, until its namespace does not allow it any more.
func TestAPodAbroadAsksTheAPIOfItsHome(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	allow := func(ctx context.Context, a v1alpha1.HomeAPI) {
		t.Helper()
		_, err := w.Home.Kubectl(ctx, "patch", "-n", shop, "namespaceoffloading", "offloading", "--type=merge", "-p", `{"spec":{"homeAPI":"`+string(a)+`"}}`)
		OK(t, err)
	}
	carry := func(ctx context.Context, a v1alpha1.HomeAPI) {
		t.Helper()
		_, err := w.Abroad.Kubectl(ctx, "patch", "peeringpolicy", "entente-default", "--type=merge", "-p", `{"spec":{"homeAPI":"`+string(a)+`"}}`)
		OK(t, err)
	}
	allow(ctx, v1alpha1.HomeAPIAllowed)
	name := accountThatReads(ctx, t, w)
	pod := WebPod(shop, "asks", map[string]string{"app": "asks"})
	pod.Annotations = map[string]string{v1alpha1.AnnotationHomeAPI: "true"}
	pod.Spec.ServiceAccountName = name
	place(&pod.Spec, Away, nil)
	OK(t, w.Home.Create(ctx, pod))
	OK(t, w.Until(ctx, Scheduled, "the provider to refuse a pod whose home's API it does not carry", func(ctx context.Context) (string, error) {
		if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(pod), pod); err != nil {
			return "", err
		}
		for _, c := range pod.Status.Conditions {
			if strings.Contains(c.Message, "its PeeringPolicy has to say homeAPI: Allowed") {
				return "", nil
			}
		}
		return fmt.Sprintf("its conditions are %+v", pod.Status.Conditions), nil
	}))
	carry(ctx, v1alpha1.HomeAPIAllowed)
	t.Cleanup(func() { carry(context.WithoutCancel(ctx), v1alpha1.HomeAPIDenied) })
	_, err := w.Home.PodsReady(ctx, Scheduled, shop, pod.Labels, 1)
	OK(t, err)
	OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(pod), pod))

	ask := func(ctx context.Context, args ...string) string {
		t.Helper()
		out, err := w.Home.InPod(ctx, shop, pod.Name, append([]string{"/tool", "api"}, args...)...)
		OK(t, err)
		return out
	}
	const own = "/api/v1/namespaces/NAMESPACE/pods/asks"
	if out := ask(ctx, own); !strings.HasPrefix(out, "200\n") || !strings.Contains(out, string(pod.UID)) {
		t.Fatalf("asked for its own pod, whose UID at home is %s, it got\n%s", pod.UID, out)
	}
	for _, path := range []string{"/api/v1/namespaces/NAMESPACE/secrets", "/api/v1/nodes"} {
		if out := ask(ctx, path); !strings.HasPrefix(out, "403\n") || !strings.Contains(out, "system:serviceaccount:"+shop+":"+name) {
			t.Errorf("asked for %s it got\n%s", path, out)
		}
	}
	watched := make(chan string, 1)
	go func() {
		out, err := w.Home.InPod(ctx, shop, pod.Name, "/tool", "api", "-w", "2m", "/api/v1/namespaces/NAMESPACE/configmaps?watch=true")
		if err != nil {
			out = err.Error()
		}
		watched <- out
	}()
	seen := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "seen"}}
	time.Sleep(2 * time.Second)
	OK(t, w.Home.Create(ctx, seen))
	time.Sleep(2 * time.Second)
	begin := time.Now()
	allow(ctx, v1alpha1.HomeAPIDenied)
	out := <-watched
	took := time.Since(begin)
	if !strings.HasPrefix(out, "200\n") || !strings.Contains(out, `"name":"seen"`) || took > Soon {
		t.Errorf("%s after the end of the opt-in the watch was\n%s", took, out)
	}
	if out := ask(ctx, own); !strings.HasPrefix(out, "403\n") || !strings.Contains(out, "has to say homeAPI: Allowed") {
		t.Errorf("after the end of the opt-in it got\n%s", out)
	}
	t.Logf("a watch ended %.1f s after the opt-in", took.Seconds())
}

// accountThatReads makes a ServiceAccount that may read pods and watch ConfigMaps in the shop.
func accountThatReads(ctx context.Context, t *testing.T, w *World) string {
	t.Helper()
	own := metav1.ObjectMeta{Namespace: shop, Name: "asks"}
	OK(t, w.Home.Create(ctx, &corev1.ServiceAccount{ObjectMeta: own},
		&rbacv1.Role{ObjectMeta: own, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: own, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: own.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: shop, Name: own.Name}},
		}))
	return own.Name
}
