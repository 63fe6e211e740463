package databases

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	. "github.com/entente-dev/entente/integration/e2e"
)

// postgresScript runs a server. An empty volume gets a database: a copy of that of $COPY, which it then
// follows, or a new one.
const postgresScript = `set -e
export PATH=$PATH:$POSTGRES PGDATA=/data/pg
if [ ! -s $PGDATA/PG_VERSION ]; then
	rm -rf $PGDATA
	if [ -n "$COPY" ]; then
		until pg_basebackup -h "$COPY" -U postgres -D $PGDATA -X stream -R -c fast; do rm -rf $PGDATA; sleep 1; done
	else
		printf %s "$PGPASSWORD" > /tmp/password
		initdb -U postgres -A scram-sha-256 --pwfile /tmp/password -D $PGDATA
		echo "host all all 0.0.0.0/0 scram-sha-256" >> $PGDATA/pg_hba.conf
		echo "host replication all 0.0.0.0/0 scram-sha-256" >> $PGDATA/pg_hba.conf
	fi
	chmod 700 $PGDATA
fi
exec postgres -D $PGDATA -c listen_addresses='*' -c unix_socket_directories=/tmp -c jit=off
`

// postgres is a server, and which other it copies.
func postgres(name, strategy, copies string) []ctrlclient.Object {
	return member(name, 1, strategy, postgresScript, []corev1.EnvVar{env("COPY", copies), {
		Name: "PGPASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "postgres"}, Key: "password",
		}},
	}}, []string{"bash", "-c", "$POSTGRES/pg_isready -q -h 127.0.0.1 -U postgres"}, 5432)
}

// sql runs statements on the server of a pod, and returns what they print.
func sql(ctx context.Context, w *World, pod, text string) (string, error) {
	return w.Home.InPod(ctx, namespace, pod, "bash", "-c", `$POSTGRES/psql -h 127.0.0.1 -U postgres -qtA -v ON_ERROR_STOP=1 -c "$0"`, text)
}

// TestPostgreSQLFailsOverBetweenClusters has a primary at home and a standby abroad, lets the primary
// end while rows are written, promotes the standby by hand, and does the same the other way round. Then both are killed in
// their turn. No row whose commit was acknowledged is lost.
func TestPostgreSQLFailsOverBetweenClusters(t *testing.T) {
	ctx, w := stage(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "postgres"}, StringData: map[string]string{"password": rand.Text()}}
	OK(t, w.Home.Create(ctx, secret))
	OK(t, w.Home.Create(ctx, postgres("pg-home", "Local", "")...))
	runs(ctx, t, w, "pg-home", 1, false)
	OK(t, w.Home.Create(ctx, postgres("pg-away", "Remote", "pg-home-0.pg-home")...))
	runs(ctx, t, w, "pg-away", 1, true)
	_, err := sql(ctx, w, "pg-home-0", "create table ledger (id bigint primary key)")
	OK(t, err)

	rows := failOver(ctx, t, w, "pg-home", "pg-away", 0, ends)
	copies(ctx, t, w, "pg-home", "Local", "pg-away")
	rows = failOver(ctx, t, w, "pg-away", "pg-home", rows, ends)
	copies(ctx, t, w, "pg-away", "Remote", "pg-home")
	rows = failOver(ctx, t, w, "pg-home", "pg-away", rows, isKilled)
	copies(ctx, t, w, "pg-home", "Local", "pg-away")
	failOver(ctx, t, w, "pg-away", "pg-home", rows, isKilled)
}

// copies has what was the primary begin again as a copy of what is: its volume is another one.
func copies(ctx context.Context, t *testing.T, w *World, name, strategy, primary string) {
	t.Helper()
	_, err := w.Home.Kubectl(ctx, "-n", namespace, "delete", "statefulset/"+name, "pvc/data-"+name+"-0", "service/"+name, "--wait=true", "--ignore-not-found")
	OK(t, err)
	OK(t, w.Home.Create(ctx, postgres(name, strategy, primary+"-0."+primary)...))
	runs(ctx, t, w, name, 1, strategy == "Remote")
}

// ends lets a server end in order.
func ends(ctx context.Context, t *testing.T, w *World, name string) {
	t.Helper()
	_, err := w.Home.Kubectl(ctx, "-n", namespace, "scale", "statefulset/"+name, "--replicas=0")
	OK(t, err)
	runs(ctx, t, w, name, 0, false)
}

// isKilled kills the processes of a server, wherever it runs, and has its pod be gone at once, as when a node dies.
func isKilled(ctx context.Context, t *testing.T, w *World, name string) {
	t.Helper()
	_, err := w.Home.Kubectl(ctx, "-n", namespace, "delete", "statefulset/"+name, "--cascade=orphan")
	OK(t, err)
	pods, err := w.Home.Pods(ctx, namespace, map[string]string{"app": name})
	OK(t, err)
	if len(pods) != 1 {
		t.Fatalf("there are %d pods of %s, want one", len(pods), name)
	}
	killed, err := killIn(name+"-0", "postgres")
	OK(t, err)
	t.Logf("%d processes of %s were killed", killed, name)
	_, err = w.Home.Kubectl(ctx, "-n", namespace, "delete", "pod", name+"-0", "--grace-period=0", "--force")
	OK(t, err)
	OK(t, w.Until(ctx, Scheduled, name+" to run nowhere", func(context.Context) (string, error) {
		if twin, err := w.Abroad.Twin(ctx, &pods[0]); err == nil {
			return PodText(twin), nil
		}
		n, err := killIn(name+"-0", "postgres")
		if n > 0 {
			return fmt.Sprintf("%d processes ran again", n), err
		}
		return "", err
	}))
}

// killIn kills the processes of a program in a pod, without warning.
func killIn(pod, program string) (killed int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		name, _ := os.ReadFile(file) // what ended has no name
		host, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "root/etc/hostname"))
		if strings.TrimSpace(string(name)) != program || strings.TrimSpace(string(host)) != pod {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return killed, err
		}
		if err := KillProcess(pid); err != nil {
			return killed, err
		}
		killed++
	}
	return killed, nil
}

// failOver writes to a primary that has a standby, ends it in some way, promotes the standby, and looks for each row
// that was acknowledged. It returns the number of the next row.
func failOver(ctx context.Context, t *testing.T, w *World, from, to string, next int, end func(ctx context.Context, t *testing.T, w *World, name string)) int {
	t.Helper()
	primary, standby := from+"-0", to+"-0"
	// From here a commit is acknowledged when the standby has it on its disk.
	for _, text := range []string{"alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"} {
		_, err := sql(ctx, w, primary, text)
		OK(t, err)
	}
	OK(t, w.Until(ctx, Soon, "the standby to follow "+primary, func(ctx context.Context) (string, error) {
		state, err := sql(ctx, w, primary, "select state, sync_state from pg_stat_replication")
		if err != nil || strings.TrimSpace(state) == "streaming|sync" {
			return "", err
		}
		return "it is " + state, nil
	}))
	writing, stop := context.WithCancel(ctx)
	defer stop()
	acknowledged, count := make(chan []int, 1), new(atomic.Int32)
	go func() {
		var ids []int
		for id := next; writing.Err() == nil; id++ {
			if _, err := sql(writing, w, primary, fmt.Sprintf("insert into ledger values (%d)", id)); err == nil {
				ids = append(ids, id)
				count.Add(1)
			}
		}
		acknowledged <- ids
	}()
	OK(t, w.Until(ctx, Soon, "rows to be written", func(context.Context) (string, error) {
		if n := count.Load(); n < 10 {
			return fmt.Sprintf("%d are", n), nil
		}
		return "", nil
	}))
	begin := time.Now()
	end(ctx, t, w, from)
	stop()
	ids := <-acknowledged
	for _, text := range []string{"alter system reset synchronous_standby_names", "select pg_promote()", "select pg_reload_conf()"} {
		_, err := sql(ctx, w, standby, text)
		OK(t, err)
	}
	text, err := sql(ctx, w, standby, "select id from ledger")
	OK(t, err)
	there := map[string]bool{}
	for id := range strings.FieldsSeq(text) {
		there[id] = true
	}
	for _, id := range ids {
		if !there[strconv.Itoa(id)] {
			t.Errorf("row %d was acknowledged by %s and is not on %s", id, primary, standby)
		}
	}
	last := next + 1_000_000
	_, err = sql(ctx, w, standby, fmt.Sprintf("insert into ledger values (%d)", last))
	OK(t, err)
	t.Logf("%s failed over to %s in %.0f s, by hand: %d rows were acknowledged, %d are there", primary, standby, time.Since(begin).Seconds(), len(ids), len(there))
	return last + 1
}
