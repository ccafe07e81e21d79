# A trial that ends at once, in the way that it is told to: sh tiny_trial.sh WAY FOLDER
way=$1 folder=$2
basename "$folder" >>"$folder/../starts.txt"
result() {
    echo '{"schema_version": 1, "images_per_second": 10.0, "num_replicas": 1,' \
        "\"elapsed_seconds\": 0.01, \"dice\": {\"cell\": 0.75}, \"checks\": {\"scores\": $1}}" \
        >"$folder/result.json"
}
case $way in
well) result true ;;
refused) echo "error: no such data set" && exit 2 ;;
"worker died")
    echo '{"reason": "process 1 of 2 was killed by SIGKILL", "exit_code": 3, "process": 1}' \
        >"$folder/failure.json"
    exit 3
    ;;
killed) kill -s KILL $$ ;;
silent) exit 0 ;;
"unlike one device") result false && exit 4 ;;
hangs) exec sleep 60 ;;
esac
