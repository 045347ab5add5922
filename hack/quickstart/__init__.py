"""`make quickstart`: elastic training on this machine. Three agents meet at an embedded etcd; one worker process is
killed, and a fourth agent joins. Then the same with a script that has an ElasticSession."""
