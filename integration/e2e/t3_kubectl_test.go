package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// restarted makes a pod abroad whose container ended once, and runs again.
func restarted(ctx context.Context, t *testing.T, w *World) (name string) {
	t.Helper()
	pod := WebPod(shop, "again", map[string]string{"app": "again"})
	place(&pod.Spec, Away, nil)
	c := &pod.Spec.Containers[0]
	c.LivenessProbe = c.ReadinessProbe.DeepCopy()
	c.LivenessProbe.FailureThreshold = 1
	OK(t, w.Home.Create(ctx, pod))
	t.Cleanup(func() { OK(t, w.Home.Client.Delete(context.WithoutCancel(ctx), pod)) })
	_, err := w.Home.PodsReady(ctx, Scheduled, shop, pod.Labels, 1)
	OK(t, err)
	_, err = w.Home.InPod(ctx, shop, pod.Name, "/tool", "write", "/tmp/health", "sick")
	OK(t, err)
	OK(t, w.Until(ctx, Soon, "a container abroad to be started again", func(ctx context.Context) (string, error) {
		now, err := w.Home.Kube.CoreV1().Pods(shop).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && (Restarts(now) == 0 || !PodReady(now)) {
			return PodText(now), nil
		}
		return "", err
	}))
	return pod.Name
}

// kubectlWorks has kubectl do with a pod abroad what it does with one at home. again is one that was restarted.
func kubectlWorks(ctx context.Context, t *testing.T, w *World, pod *corev1.Pod, again string) {
	t.Helper()
	home, out := w.Home, pod.Name
	text, err := home.Kubectl(ctx, "logs", "-n", shop, out)
	if err != nil || !strings.Contains(text, out+" listens on") {
		t.Errorf("logs: %v\n%s", err, text)
	}
	text, err = home.Kubectl(ctx, "logs", "-n", shop, again, "--previous")
	if err != nil || !strings.Contains(text, again+" listens on") {
		t.Errorf("logs --previous: %v\n%s", err, text)
	}
	text, err = home.InPod(ctx, shop, out, "/tool", "env")
	if err != nil || !strings.Contains(text, "POD_NAME="+out+"\n") {
		t.Errorf("exec: %v\n%s", err, text)
	}
	copies(ctx, t, home, out)
	forwards(ctx, t, w, pod)
	for path, want := range map[string]string{"metrics/resource": "resource_scrape_error ", "stats/summary": `"nodeName":"` + pod.Spec.NodeName + `"`} {
		text, err = home.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/"+pod.Spec.NodeName+"/proxy/"+path)
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("%s: %v\n%s", path, err, text)
		}
	}
}

// copies copies a file to a pod and back.
func copies(ctx context.Context, t *testing.T, home *Side, pod string) {
	t.Helper()
	dir, want := t.TempDir(), make([]byte, 3<<20)
	for i := range want {
		want[i] = byte(rand.Uint32())
	}
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	OK(t, os.WriteFile(there, want, 0o600))
	for _, args := range [][]string{{there, shop + "/" + pod + ":/tmp/copied"}, {shop + "/" + pod + ":/tmp/copied", back}} {
		if _, err := home.Kubectl(ctx, append([]string{"cp"}, args...)...); err != nil {
			t.Errorf("cp: %v", err)
			return
		}
	}
	got, err := os.ReadFile(back)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("cp: of %d bytes %d came back (%v), or others", len(want), len(got), err)
	}
}

// forwards has a port of a pod forwarded while its output is attached, and checks whether a request
// through the one shows in the other.
func forwards(ctx context.Context, t *testing.T, w *World, pod *corev1.Pod) {
	t.Helper()
	run := func(args ...string) *Output {
		shown := &Output{}
		watched, stop := context.WithCancel(Watching(ctx, shown))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if _, err := w.Home.Kubectl(watched, args...); watched.Err() == nil {
				t.Errorf("%s ended by itself: %v", args[0], err)
			}
		}()
		t.Cleanup(func() { stop(); <-ended })
		return shown
	}
	forwarded := run("port-forward", "-n", shop, pod.Name, fmt.Sprintf(":%d", WebPort))
	attached := run("attach", "-n", shop, pod.Name)
	local := regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)
	OK(t, w.Until(ctx, Soon, "a request through a forwarded port to show in what is attached", func(ctx context.Context) (string, error) {
		address := local.FindString(forwarded.String())
		if address == "" {
			return fmt.Sprintf("port-forward printed %q", forwarded), nil
		}
		answer, err := get(ctx, "http://"+address+"/name")
		if err == nil && !strings.HasPrefix(answer, pod.Name) {
			return fmt.Sprintf("%q answers", answer), nil
		}
		if err == nil && !strings.Contains(attached.String(), "GET /name") {
			return fmt.Sprintf("attach printed %q", attached), nil
		}
		return "", err
	}))
}

func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}
