package databases

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	. "github.com/entente-dev/entente/integration/e2e"
)

// etcdMembers are one pod at home and two abroad, by the names of their StatefulSets.
var etcdMembers = []struct {
	pod, set string
	abroad   bool
}{{"etcd-home-0", "etcd-home", false}, {"etcd-away-0", "etcd-away", true}, {"etcd-away-1", "etcd-away", true}}

// etcdScript runs a member under the name of its pod, which all resolve as at home.
func etcdScript() string {
	var cluster []string
	for _, m := range etcdMembers {
		cluster = append(cluster, fmt.Sprintf("%s=http://%s.%s:2380", m.pod, m.pod, m.set))
	}
	return `exec etcd --name "$HOSTNAME" --data-dir /data/etcd ` +
		`--listen-client-urls http://0.0.0.0:2379 --advertise-client-urls "http://$HOSTNAME.$SET:2379" ` +
		`--listen-peer-urls http://0.0.0.0:2380 --initial-advertise-peer-urls "http://$HOSTNAME.$SET:2380" ` +
		`--heartbeat-interval 250 --election-timeout 2500 ` +
		`--initial-cluster ` + strings.Join(cluster, ",")
}

// call asks a member over HTTP, from inside its pod.
func call(ctx context.Context, w *World, pod, path, body string) (string, error) {
	return w.Home.InPod(ctx, namespace, pod, "curl", "-fsS", "-m", "5", "--data", body, "http://127.0.0.1:2379/v3/kv/"+path)
}

const stopFile = "/tmp/stop"

// etcdWriter writes keys until stopFile is there, and prints each that was acknowledged, with the time in µs.
const etcdWriter = `
for ((i = 0; ; i++)); do
	[ ! -e ` + stopFile + ` ] || exit 0
	key=key-$i
	word=$(printf %s "$key" | base64)
	if curl -fsS -m 5 -o /dev/null --data "{\"key\":\"$word\",\"value\":\"$word\"}" http://127.0.0.1:2379/v3/kv/put 2>/dev/null; then
		echo "$key ${EPOCHREALTIME/./}"
	fi
done`

// acknowledged reads what etcdWriter printed: the keys, and the longest time between two.
func acknowledged(text string) (keys []string, longest time.Duration, err error) {
	var last int64
	for line := range strings.Lines(text) {
		var key string
		var at int64
		if _, err := fmt.Sscan(line, &key, &at); err != nil {
			return nil, 0, fmt.Errorf("%q: %w", line, err)
		}
		if last > 0 {
			longest = max(longest, time.Duration(at-last)*time.Microsecond)
		}
		keys, last = append(keys, key), at
	}
	return keys, longest, nil
}

// TestEtcdSurvivesTheRestartOfEitherAgent writes to an etcd of three members in two clusters while
// each of the agents is restarted.
func TestEtcdSurvivesTheRestartOfEitherAgent(t *testing.T) {
	ctx, w := stage(t)
	ready := []string{"curl", "-fsS", "-m", "2", "http://127.0.0.1:2379/health"}
	OK(t, w.Home.Create(ctx, member("etcd-home", 1, "Local", etcdScript(), []corev1.EnvVar{env("SET", "etcd-home")}, ready, 2379, 2380)...))
	OK(t, w.Home.Create(ctx, member("etcd-away", 2, "Remote", etcdScript(), []corev1.EnvVar{env("SET", "etcd-away")}, ready, 2379, 2380)...))
	lives := LivesOf(append(runs(ctx, t, w, "etcd-home", 1, false), runs(ctx, t, w, "etcd-away", 2, true)...))

	// The member at home is written to: what it acknowledged has been abroad. The stream to it does not go through the agents.
	type output struct {
		text string
		err  error
	}
	done := make(chan output, 1)
	go func() {
		text, err := w.Home.InPod(ctx, namespace, "etcd-home-0", "bash", "-c", etcdWriter)
		done <- output{text, err}
	}()
	for _, s := range w.Sides() {
		begin := time.Now()
		_, err := s.Kubectl(ctx, "-n", SystemNamespace, "rollout", "restart", "deployment/entente-agent")
		OK(t, err)
		_, err = s.Kubectl(ctx, "-n", SystemNamespace, "rollout", "status", "deployment/entente-agent", "--timeout=2m")
		OK(t, err)
		OK(t, s.AgentReady(ctx, Restarted))
		_, err = w.Peered(ctx, Restarted)
		OK(t, err)
		t.Logf("the agent of %s was restarted, and the peering whole, in %.0f s", s.Name, time.Since(begin).Seconds())
	}
	_, err := w.Home.InPod(ctx, namespace, "etcd-home-0", "touch", stopFile)
	OK(t, err)
	out := <-done
	OK(t, out.err)
	written, longest, err := acknowledged(out.text)
	OK(t, err)
	t.Logf("%d keys; the longest time without one was %.1f s", len(written), longest.Seconds())
	// An election takes 2.5 s, and the writer a process for each key on a busy machine.
	if longest > 10*time.Second || len(written) < 20 {
		t.Errorf("%d keys were written, and none for %s", len(written), longest)
	}
	for _, m := range etcdMembers {
		text, err := call(ctx, w, m.pod, "range", fmt.Sprintf(`{"key":%q,"range_end":%q,"keys_only":true,"serializable":false}`,
			base64.StdEncoding.EncodeToString([]byte("key-")), base64.StdEncoding.EncodeToString([]byte("key."))))
		OK(t, err)
		for _, key := range written {
			if !strings.Contains(text, fmt.Sprintf("%q", base64.StdEncoding.EncodeToString([]byte(key)))) {
				t.Errorf("%s has lost %s", m.pod, key)
			}
		}
	}
	now := LivesOf(append(runs(ctx, t, w, "etcd-home", 1, false), runs(ctx, t, w, "etcd-away", 2, true)...))
	OK(t, lives.Same(now))
}
