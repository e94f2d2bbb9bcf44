//! Small runs in the formats of ROCm 6.2 to ROCm 10, written by hand. Each follows a file of rocprofiler-sdk, whose folder
//! in ROCm/rocm-systems is `projects/rocprofiler-sdk`: a sample of its documentation in `source/docs/data`, or the source
//! that writes the format.

/// `*_kernel_trace.csv` of ROCm 7: columns of `generate_csv` for kernel dispatches in `source/lib/output/generateCSV.cpp`.
pub(crate) const TRACE: &str = include_str!(sample!("rocprof-kernel-trace"));

/// `*_counter_collection.csv` of ROCm 7 as `source/docs/data/counter_collection.csv`: two counters of three dispatches, one
/// of which never counts.
pub(crate) const COUNTERS: &str = include_str!(sample!("rocprof-counters"));

/// The same in ROCm 6.2, as `source/docs/data/counter_collection.csv` of ROCm/rocprofiler-sdk then: agents are numbers and
/// dispatches have no times.
pub(crate) const COUNTERS_6_2: &str = r#""Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","SGPR_Count","Counter_Name","Counter_Value"
1,1,1,1,19396,19396,1048576,16,"void add<float>(float*, int)",64,0,0,8,16,"SQ_WAVES",16384
2,2,1,1,19396,19396,1048576,16,"void add<float>(float*, int)",64,0,0,8,16,"SQ_WAVES",16384
"#;

/// `*_hip_api_trace.csv` as `source/docs/data/hip_runtime_trace.csv`; `HIP_RUNTIME_API_EXT` is the domain's name since ROCm 7.
pub(crate) const CALLS: &str = r#""Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"HIP_RUNTIME_API_EXT","hipModuleLaunchKernel",15606,15606,1,3200098838400000,3200098838402500
"HIP_RUNTIME_API_EXT","hipStreamSynchronize",15606,15606,2,3200098838410000,3200098838447500
"#;

/// `*_agent_info.csv`: columns of `generate_csv` for agents in `source/lib/output/generateCSV.cpp`.
pub(crate) const AGENTS: &str = r#""Node_Id","Logical_Node_Id","Agent_Type","Cpu_Cores_Count","Simd_Count","Cpu_Core_Id_Base","Simd_Id_Base","Max_Waves_Per_Simd","Lds_Size_In_Kb","Gds_Size_In_Kb","Num_Gws","Wave_Front_Size","Num_Xcc","Cu_Count","Array_Count","Num_Shader_Banks","Simd_Arrays_Per_Engine","Cu_Per_Simd_Array","Simd_Per_Cu","Max_Slots_Scratch_Cu","Gfx_Target_Version","Vendor_Id","Device_Id","Location_Id","Domain","Drm_Render_Minor","Num_Sdma_Engines","Num_Sdma_Xgmi_Engines","Num_Sdma_Queues_Per_Engine","Num_Cp_Queues","Max_Engine_Clk_Ccompute","Max_Engine_Clk_Fcompute","Sdma_Fw_Version","Fw_Version","Capability","Cu_Per_Engine","Max_Waves_Per_Cu","Family_Id","Workgroup_Max_Size","Grid_Max_Size","Local_Mem_Size","Hive_Id","Gpu_Id","Workgroup_Max_Dim_X","Workgroup_Max_Dim_Y","Workgroup_Max_Dim_Z","Grid_Max_Dim_X","Grid_Max_Dim_Y","Grid_Max_Dim_Z","Name","Vendor_Name","Product_Name","Model_Name"
0,0,"CPU",16,0,0,0,0,0,0,0,0,0,16,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,5573,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"AMD Ryzen 9 7950X 16-Core Processor","CPU","AMD Ryzen 9 7950X 16-Core Processor",""
1,1,"GPU",0,168,0,2147487744,16,64,0,64,32,1,84,12,6,2,8,2,32,110000,4098,29772,768,0,128,2,0,6,8,5573,2482,24,2280,671588992,14,32,145,1024,4294967295,0,0,12345,1024,1024,1024,2147483647,65535,65535,"gfx1100","AMD","AMD Radeon RX 7900 XT","ip discovery"
"#;

/// `*_results.json` of ROCm 7 for the same run: objects of `source/lib/output/generateJSON.cpp` and of the schema in
/// "Output file fields" of `source/docs/how-to/using-rocprofv3.rst`. A counter has a record per shader engine.
pub(crate) const JSON: &str = include_str!(sample!("rocprof-json"));

/// `*_memory_copy_trace.csv`: columns of `generate_csv` for memory copies in `source/lib/output/generateCSV.cpp`.
pub(crate) const COPIES: &str = r#""Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,"Agent 0","Agent 1",3,3200098838300000,3200098838350000
"#;

/// The same run as a rocpd database: tables and columns of `versions/3.0.0/rocpd_tables.sql` in
/// `source/share/rocprofiler-sdk-rocpd`, without foreign keys and the tables that nothing here reads. `{}` is the end of
/// every table's name.
pub(crate) const ROCPD: &str = r#"
CREATE TABLE "rocpd_metadata{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "tag" TEXT NOT NULL,
    "value" TEXT NOT NULL);
CREATE TABLE "rocpd_string{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT 'g' NOT NULL,
    "string" TEXT NOT NULL UNIQUE ON CONFLICT ABORT);
CREATE TABLE "rocpd_info_agent{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL,
    "type" TEXT CHECK ("type" IN ('CPU', 'GPU')), "absolute_index" INTEGER, "logical_index" INTEGER,
    "type_index" INTEGER, "uuid" INTEGER, "name" TEXT, "model_name" TEXT, "vendor_name" TEXT, "product_name" TEXT,
    "user_name" TEXT, "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_info_pmc{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL, "agent_id" INTEGER,
    "target_arch" TEXT CHECK ("target_arch" IN ('CPU', 'GPU')), "event_code" INT, "instance_id" INTEGER, "name" TEXT NOT NULL, "symbol" TEXT NOT NULL,
    "description" TEXT, "long_description" TEXT DEFAULT '', "component" TEXT, "units" TEXT DEFAULT '',
    "value_type" TEXT CHECK ("value_type" IN ('ABS', 'ACCUM', 'RELATIVE')), "block" TEXT, "expression" TEXT, "is_constant" INTEGER, "is_derived" INTEGER,
    "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_info_kernel_symbol{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL,
    "code_object_id" INTEGER NOT NULL, "kernel_name" TEXT, "display_name" TEXT, "kernel_object" INTEGER,
    "kernarg_segment_size" INTEGER, "kernarg_segment_alignment" INTEGER, "group_segment_size" INTEGER,
    "private_segment_size" INTEGER, "sgpr_count" INTEGER, "arch_vgpr_count" INTEGER, "accum_vgpr_count" INTEGER,
    "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_event{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT 'g' NOT NULL,
    "category_id" INTEGER, "stack_id" INTEGER, "parent_stack_id" INTEGER, "correlation_id" INTEGER,
    "call_stack" JSONB DEFAULT '{}' NOT NULL, "line_info" JSONB DEFAULT '{}' NOT NULL,
    "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_pmc_event{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "event_id" INTEGER, "pmc_id" INTEGER NOT NULL, "value" REAL DEFAULT 0.0,
    "extdata" JSONB DEFAULT '{}');
CREATE TABLE "rocpd_region{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT 'g' NOT NULL,
    "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL, "tid" INTEGER NOT NULL, "start" BIGINT NOT NULL,
    "end" BIGINT NOT NULL, "name_id" INTEGER NOT NULL, "event_id" INTEGER, "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_kernel_dispatch{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL, "tid" INTEGER,
    "agent_id" INTEGER NOT NULL, "kernel_id" INTEGER NOT NULL, "dispatch_id" INTEGER NOT NULL,
    "queue_id" INTEGER NOT NULL, "stream_id" INTEGER NOT NULL, "start" BIGINT NOT NULL, "end" BIGINT NOT NULL,
    "private_segment_size" INTEGER, "group_segment_size" INTEGER, "workgroup_size_x" INTEGER NOT NULL,
    "workgroup_size_y" INTEGER NOT NULL, "workgroup_size_z" INTEGER NOT NULL, "grid_size_x" INTEGER NOT NULL,
    "grid_size_y" INTEGER NOT NULL, "grid_size_z" INTEGER NOT NULL, "region_name_id" INTEGER, "event_id" INTEGER,
    "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_memory_copy{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "nid" INTEGER NOT NULL, "pid" INTEGER NOT NULL, "tid" INTEGER,
    "start" BIGINT NOT NULL, "end" BIGINT NOT NULL, "name_id" INTEGER NOT NULL, "dst_agent_id" INTEGER,
    "dst_address" INTEGER, "src_agent_id" INTEGER, "src_address" INTEGER, "size" INTEGER NOT NULL,
    "queue_id" INTEGER, "stream_id" INTEGER, "region_name_id" INTEGER, "event_id" INTEGER,
    "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE VIEW "rocpd_string" AS SELECT * FROM "rocpd_string{}";
CREATE VIEW "rocpd_kernel_dispatch" AS SELECT * FROM "rocpd_kernel_dispatch{}";
INSERT INTO "rocpd_metadata{}" ("tag", "value") VALUES ('schema_version', '3'), ('uuid', '{}');
INSERT INTO "rocpd_string{}" ("id", "string") VALUES (1, 'hipModuleLaunchKernel'), (2, 'hipStreamSynchronize'),
    (3, 'MEMORY_COPY_HOST_TO_DEVICE'), (4, 'a marker'), (5, 'hsa_signal_create');
INSERT INTO "rocpd_info_agent{}" ("id", "nid", "pid", "type", "name", "product_name", "extdata") VALUES
    (0, 1, 1, 'CPU', 'AMD Ryzen 9 7950X', 'AMD Ryzen 9 7950X', '{}'),
    (1, 1, 1, 'GPU', 'gfx1100', 'AMD Radeon RX 7900 XT', '{"cu_count": 84}');
INSERT INTO "rocpd_info_kernel_symbol{}" ("id", "nid", "pid", "code_object_id", "kernel_name", "display_name") VALUES
    (10, 1, 1, 1, 'matvec_2_1.kd', 'matvec_2_1'),
    (11, 1, 1, 1, '_Z3rmsIfLi4EEvPfPKf.kd', 'void rms<float, 4>(float*, float const*)');
"#;

/// Kernels, calls and copies, into [`ROCPD`]'s tables.
pub(crate) const ROCPD_TRACE: &str = r#"
INSERT INTO "rocpd_kernel_dispatch{}" ("nid", "pid", "agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id",
    "start", "end", "workgroup_size_x", "workgroup_size_y", "workgroup_size_z", "grid_size_x", "grid_size_y",
    "grid_size_z", "event_id") VALUES
    (1, 1, 1, 10, 1, 1, 1, 1550151853000000, 1550151853012000, 128, 1, 1, 65536, 1, 1, 1),
    (1, 1, 1, 11, 2, 1, 1, 1550151853020000, 1550151853024000, 256, 1, 1, 256, 1, 1, 2),
    (1, 1, 1, 10, 3, 1, 1, 1550151853030000, 1550151853044000, 128, 1, 1, 65536, 1, 1, 3);
INSERT INTO "rocpd_region{}" ("nid", "pid", "tid", "start", "end", "name_id", "event_id") VALUES
    (1, 1, 1, 3200098838400000, 3200098838402500, 1, 4), (1, 1, 1, 3200098838410000, 3200098838447500, 2, 5),
    (1, 1, 1, 3200098838400000, 3200098838447500, 4, 6);
INSERT INTO "rocpd_memory_copy{}" ("nid", "pid", "start", "end", "name_id", "size", "event_id") VALUES
    (1, 1, 3200098838300000, 3200098838350000, 3, 1048576, 7);
"#;

/// Calls of HSA into [`ROCPD`]'s tables. In CSV they are [`HSA_CALLS`].
pub(crate) const ROCPD_HSA: &str = r#"
INSERT INTO "rocpd_region{}" ("nid", "pid", "tid", "start", "end", "name_id", "event_id") VALUES
    (1, 1, 1, 1056813749083419, 1056813749085419, 5, 8), (1, 1, 1, 1056813857149169, 1056813857154169, 5, 9);
"#;

/// `*_hsa_api_trace.csv` as `source/docs/data/hsa_core_api_trace.csv`.
pub(crate) const HSA_CALLS: &str = r#""Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"HSA_CORE_API","hsa_signal_create",57,57,56,1056813749083419,1056813749085419
"HSA_CORE_API","hsa_signal_create",57,57,59,1056813857149169,1056813857154169
"#;

/// Two counters of three dispatches, one with a row per hardware instance, into [`ROCPD`]'s tables. The last row is of
/// an event that is no dispatch.
pub(crate) const ROCPD_COUNTERS: &str = r#"
INSERT INTO "rocpd_info_pmc{}" ("id", "nid", "pid", "name", "symbol") VALUES (5, 1, 1, 'SQ_WAVES', 'SQ_WAVES'),
    (6, 1, 1, 'GL2C_HIT_sum', 'GL2C_HIT_sum');
INSERT INTO "rocpd_kernel_dispatch{}" ("nid", "pid", "agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id",
    "start", "end", "workgroup_size_x", "workgroup_size_y", "workgroup_size_z", "grid_size_x", "grid_size_y",
    "grid_size_z", "event_id") VALUES
    (1, 1, 1, 10, 1, 1, 1, 1000000, 1020000, 128, 1, 1, 65536, 1, 1, 1),
    (1, 1, 1, 11, 2, 1, 1, 2000000, 2006000, 256, 1, 1, 256, 1, 1, 2),
    (1, 1, 1, 10, 3, 1, 1, 3000000, 3020000, 128, 1, 1, 65536, 1, 1, 3);
INSERT INTO "rocpd_pmc_event{}" ("event_id", "pmc_id", "value") VALUES (1, 5, 1024.0), (1, 5, 1024.0), (1, 6, 0.0),
    (2, 5, 8.0), (2, 6, 0.0), (3, 5, 2048.0), (3, 6, 0.0), (99, 5, 7.0), (NULL, 5, 7.0);
"#;

/// `*_marker_api_trace.csv` in the form of `source/docs/data/marker_api_trace.csv` of rocprofiler-sdk: a mark, ranges of a
/// thread that lie within each other, and one of the whole process, without a thread. The kernels are those of
/// [`RANGED_TRACE`], the calls those of [`RANGED_CALLS`].
pub(crate) const MARKERS: &str = r#""Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"MARKER_CORE_API","a mark",717,717,1,1000,1000
"MARKER_CORE_API","matmul ffn_down Q6_K [4096, 14336]",717,717,3,1110,1130
"MARKER_CORE_API","rms_norm",717,717,5,1130,1150
"MARKER_CORE_API","step of 1 rows",717,717,2,1100,1200
"MARKER_CORE_API","the process",717,0,9,1000,9000
"#;

/// `*_hip_api_trace.csv` in the form of `source/docs/data/hip_runtime_trace.csv`. The kernel with id 6 has none.
pub(crate) const RANGED_CALLS: &str = r#""Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"HIP_RUNTIME_API","hipModuleLaunchKernel",717,717,4,1115,1120
"HIP_RUNTIME_API","hipModuleLaunchKernel",717,717,7,1135,1140
"HIP_RUNTIME_API","hipModuleLaunchKernel",717,717,8,1160,1165
"HIP_RUNTIME_API","hipModuleLaunchKernel",717,717,10,1300,1305
"#;

/// `*_kernel_trace.csv` in the form of `source/docs/data/kernel_trace.csv`. The kernels run long after their launches.
pub(crate) const RANGED_TRACE: &str = r#""Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH",2,1,1,717,1,11,"gemv",4,2000000,2008000,0,0,64,1,1,1024,1,1
"KERNEL_DISPATCH",2,1,1,717,2,12,"norm",7,2010000,2012000,0,0,64,1,1,1024,1,1
"KERNEL_DISPATCH",2,1,1,717,3,13,"end_step",8,2020000,2021000,0,0,64,1,1,1024,1,1
"KERNEL_DISPATCH",2,1,1,717,4,14,"copy",10,2030000,2031000,0,0,64,1,1,1024,1,1
"KERNEL_DISPATCH",2,1,1,717,5,11,"gemv",6,2040000,2041000,0,0,64,1,1,1024,1,1
"#;

/// The same into [`ROCPD`]'s tables, as `source/lib/output/generateRocpd.cpp` writes it: the event of a call or a kernel
/// has the call's correlation id as `stack_id`, that of a range its name in `extdata`.
pub(crate) const ROCPD_RANGES: &str = r#"
INSERT INTO "rocpd_string{}" ("id", "string") VALUES (20, 'HIP_RUNTIME_API_EXT'), (21, 'MARKER_CORE_RANGE_API'),
    (22, 'KERNEL_DISPATCH'), (23, 'roctxThreadRangeA'), (24, 'roctxProcessRangeA'), (25, ''), (26, 'rms_norm'),
    (27, 'matmul ffn_down Q6_K [4096, 14336]'), (28, 'step of 1 rows');
INSERT INTO "rocpd_event{}" ("id", "category_id", "stack_id", "extdata") VALUES
    (102, 21, 2, '{"message": "step of 1 rows"}'),
    (103, 21, 3, '{"message": "matmul ffn_down Q6_K [4096, 14336]"}'),
    (105, 21, 5, '{"message": "rms_norm"}'),
    (109, 21, 9, '{"message": "the process"}'),
    (104, 20, 4, '{}'), (107, 20, 7, '{}'), (108, 20, 8, '{}'), (110, 20, 10, '{}'),
    (204, 22, 4, '{}'), (207, 22, 7, '{}'), (208, 22, 8, '{}'), (210, 22, 10, '{}'), (206, 22, 6, '{}');
INSERT INTO "rocpd_region{}" ("nid", "pid", "tid", "start", "end", "name_id", "event_id") VALUES
    (1, 717, 717, 1100, 1200, 23, 102), (1, 717, 717, 1110, 1130, 23, 103), (1, 717, 717, 1130, 1150, 23, 105),
    (1, 717, 0, 1000, 9000, 24, 109),
    (1, 717, 717, 1115, 1120, 1, 104), (1, 717, 717, 1135, 1140, 1, 107), (1, 717, 717, 1160, 1165, 1, 108),
    (1, 717, 717, 1300, 1305, 1, 110);
INSERT INTO "rocpd_kernel_dispatch{}" ("nid", "pid", "agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id",
    "start", "end", "workgroup_size_x", "workgroup_size_y", "workgroup_size_z", "grid_size_x", "grid_size_y",
    "grid_size_z", "region_name_id", "event_id") VALUES
    (1, 717, 1, 10, 1, 1, 1, 2000000, 2008000, 64, 1, 1, 1024, 1, 1, 25, 204),
    (1, 717, 1, 11, 2, 1, 1, 2010000, 2012000, 64, 1, 1, 1024, 1, 1, 25, 207),
    (1, 717, 1, 11, 3, 1, 1, 2020000, 2021000, 64, 1, 1, 1024, 1, 1, 25, 208),
    (1, 717, 1, 11, 4, 1, 1, 2030000, 2031000, 64, 1, 1, 1024, 1, 1, 25, 210),
    (1, 717, 1, 10, 5, 1, 1, 2040000, 2041000, 64, 1, 1, 1024, 1, 1, 25, 206);
"#;

/// The same kernels of a run with `--kernel-rename`, where each has the name of its range.
pub(crate) const ROCPD_RENAMED: &str = r#"
UPDATE "rocpd_kernel_dispatch{}" SET "region_name_id" = 27 WHERE "dispatch_id" IN (1, 5);
UPDATE "rocpd_kernel_dispatch{}" SET "region_name_id" = 26 WHERE "dispatch_id" = 2;
UPDATE "rocpd_kernel_dispatch{}" SET "region_name_id" = 28 WHERE "dispatch_id" = 3;
"#;

/// The dispatches of [`ROCPD_RENAMED`] in a run that counts what the cache fetches and finds, written as
/// `insert_pmc_event_data` of `source/lib/output/generateRocpd.cpp` does. Counted dispatches have the names of ranges, too:
/// `test_queue_thread_gpu_and_kernel_rename_contexts` of rocprofiler-sdk's tests of counters.
pub(crate) const ROCPD_COUNTED_READS: &str = r#"
INSERT INTO "rocpd_info_pmc{}" ("id", "nid", "pid", "name", "symbol") VALUES (5, 1, 1, 'FETCH_SIZE', 'FETCH_SIZE'),
    (6, 1, 1, 'GL2C_HIT_sum', 'GL2C_HIT_sum'), (7, 1, 1, 'GL2C_MISS_sum', 'GL2C_MISS_sum'),
    (8, 1, 1, 'OccupancyPercent', 'OccupancyPercent');
INSERT INTO "rocpd_pmc_event{}" ("event_id", "pmc_id", "value") VALUES
    (204, 5, 1000.0), (204, 6, 30.0), (204, 7, 10.0), (204, 8, 40.0), (206, 5, 125.0), (206, 6, 0.0), (206, 7, 8.0),
    (206, 8, 4.0), (207, 5, 2.0), (207, 6, 1.0), (207, 7, 1.0), (207, 8, 0.0), (208, 5, 0.0), (208, 6, 0.0), (208, 7, 0.0),
    (208, 8, 1.0), (210, 5, 512.0), (210, 6, 0.0), (210, 7, 1.0), (210, 8, 1.0);
"#;

/// The same in a run that counts writes, and a counter that never counts.
pub(crate) const ROCPD_COUNTED_WRITES: &str = r#"
INSERT INTO "rocpd_info_pmc{}" ("id", "nid", "pid", "name", "symbol") VALUES (5, 1, 1, 'WRITE_SIZE', 'WRITE_SIZE'),
    (6, 1, 1, 'OccupancyPercent', 'OccupancyPercent');
INSERT INTO "rocpd_pmc_event{}" ("event_id", "pmc_id", "value") VALUES (204, 5, 80.0), (204, 6, 0.0), (206, 5, 10.0),
    (206, 6, 0.0), (207, 5, 2.0), (207, 6, 0.0), (208, 5, 1.0), (208, 6, 0.0), (210, 5, 512.0), (210, 6, 0.0);
"#;

/// Turns a database of version 3.0 into one of version 4: threads and queues are in a table of tracks, categories of events
/// in one of their own. [`ROCPD_4_0`] or [`ROCPD_4_1`] follows. A range of the whole process has a track without a thread.
pub(crate) const TO_ROCPD_4: &str = r#"
CREATE TABLE "rocpd_track{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT 'g' NOT NULL,
    "nid" INTEGER NOT NULL, "ppid" INTEGER, "pid" INTEGER, "tid" INTEGER, "agent_id" INTEGER, "queue_id" INTEGER,
    "stream_id" INTEGER, "name_id" INTEGER, "extdata" JSONB DEFAULT '{}' NOT NULL);
INSERT INTO "rocpd_track{}" ("id", "nid", "pid", "agent_id", "queue_id", "stream_id") VALUES (7, 1, 1, 1, 1, 1);
INSERT INTO "rocpd_track{}" ("nid", "pid", "tid") SELECT DISTINCT "nid", "pid", nullif("tid", 0) FROM "rocpd_region{}";
CREATE TABLE "rocpd_info_category{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "name" TEXT NOT NULL, "extdata" JSONB DEFAULT '{}' NOT NULL);
INSERT INTO "rocpd_info_category{}" ("id", "name") SELECT 1000 + "id", "string" FROM "rocpd_string{}"
    WHERE "id" IN (SELECT "category_id" FROM "rocpd_event{}");
UPDATE "rocpd_event{}" SET "category_id" = 1000 + "category_id";
DROP VIEW "rocpd_kernel_dispatch";
ALTER TABLE "rocpd_event{}" DROP COLUMN "call_stack";
ALTER TABLE "rocpd_event{}" DROP COLUMN "line_info";
ALTER TABLE "rocpd_kernel_dispatch{}" RENAME TO "old_dispatch{}";
ALTER TABLE "rocpd_region{}" RENAME TO "old_region{}";
ALTER TABLE "rocpd_memory_copy{}" RENAME TO "old_copy{}";
UPDATE "rocpd_metadata{}" SET "value" = '4' WHERE "tag" = 'schema_version';
"#;

/// After [`TO_ROCPD_4`], tables of `rocpd_v4.0_tables.sql` of ROCm's profiler-hub: times are in a table of their own.
pub(crate) const ROCPD_4_0: &str = r#"
CREATE TABLE "rocpd_timestamp{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT 'g' NOT NULL,
    "value" BIGINT NOT NULL, "phase" INTEGER CHECK ("phase" IN (0, 1, 2)), "track_id" INTEGER);
INSERT INTO "rocpd_timestamp{}" ("value") SELECT "start" FROM "old_dispatch{}" UNION SELECT "end" FROM "old_dispatch{}"
    UNION SELECT "start" FROM "old_region{}" UNION SELECT "end" FROM "old_region{}" UNION
    SELECT "start" FROM "old_copy{}" UNION SELECT "end" FROM "old_copy{}" ORDER BY 1 DESC;
CREATE TABLE "rocpd_region{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT 'g' NOT NULL,
    "track_id" INTEGER NOT NULL, "name_id" INTEGER NOT NULL, "start_id" INTEGER NOT NULL, "end_id" INTEGER NOT NULL,
    "event_id" INTEGER, "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_kernel_dispatch{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "track_id" INTEGER NOT NULL, "kernel_id" INTEGER NOT NULL,
    "dispatch_id" INTEGER NOT NULL, "start_id" INTEGER NOT NULL, "end_id" INTEGER NOT NULL,
    "private_segment_size" INTEGER, "group_segment_size" INTEGER, "workgroup_size_x" INTEGER NOT NULL,
    "workgroup_size_y" INTEGER NOT NULL, "workgroup_size_z" INTEGER NOT NULL, "grid_size_x" INTEGER NOT NULL,
    "grid_size_y" INTEGER NOT NULL, "grid_size_z" INTEGER NOT NULL, "region_name_id" INTEGER, "event_id" INTEGER,
    "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_memory_copy{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "track_id" INTEGER NOT NULL, "start_id" INTEGER NOT NULL,
    "end_id" INTEGER NOT NULL, "name_id" INTEGER NOT NULL, "dst_agent_id" INTEGER, "dst_address" INTEGER,
    "src_agent_id" INTEGER, "src_address" INTEGER, "size" INTEGER NOT NULL, "region_name_id" INTEGER,
    "event_id" INTEGER, "extdata" JSONB DEFAULT '{}' NOT NULL);
INSERT INTO "rocpd_region{}" ("track_id", "name_id", "start_id", "end_id", "event_id") SELECT
    (SELECT "id" FROM "rocpd_track{}" AS t WHERE t."agent_id" IS NULL AND t."tid" IS nullif(o."tid", 0)), "name_id",
    (SELECT "id" FROM "rocpd_timestamp{}" WHERE "value" = "start"),
    (SELECT "id" FROM "rocpd_timestamp{}" WHERE "value" = "end"), "event_id" FROM "old_region{}" AS o;
INSERT INTO "rocpd_kernel_dispatch{}" ("track_id", "kernel_id", "dispatch_id", "start_id", "end_id", "workgroup_size_x",
    "workgroup_size_y", "workgroup_size_z", "grid_size_x", "grid_size_y", "grid_size_z", "region_name_id", "event_id")
    SELECT 7, "kernel_id", "dispatch_id", (SELECT "id" FROM "rocpd_timestamp{}" WHERE "value" = "start"),
    (SELECT "id" FROM "rocpd_timestamp{}" WHERE "value" = "end"), "workgroup_size_x", "workgroup_size_y",
    "workgroup_size_z", "grid_size_x", "grid_size_y", "grid_size_z", "region_name_id", "event_id" FROM "old_dispatch{}";
INSERT INTO "rocpd_memory_copy{}" ("track_id", "start_id", "end_id", "name_id", "size", "event_id") SELECT 7,
    (SELECT "id" FROM "rocpd_timestamp{}" WHERE "value" = "start"),
    (SELECT "id" FROM "rocpd_timestamp{}" WHERE "value" = "end"), "name_id", "size", "event_id" FROM "old_copy{}";
DROP TABLE "old_dispatch{}";
DROP TABLE "old_region{}";
DROP TABLE "old_copy{}";
"#;

/// After [`TO_ROCPD_4`], tables of `versions/4.1.0/rocpd_tables.sql` in `source/share/rocprofiler-sdk-rocpd`: times are in the
/// rows, as in version 3.
pub(crate) const ROCPD_4_1: &str = r#"
CREATE TABLE "rocpd_region{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT DEFAULT 'g' NOT NULL,
    "track_id" INTEGER NOT NULL, "name_id" INTEGER NOT NULL, "start" BIGINT NOT NULL, "end" BIGINT NOT NULL,
    "event_id" INTEGER, "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_kernel_dispatch{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "track_id" INTEGER NOT NULL, "kernel_id" INTEGER NOT NULL,
    "dispatch_id" INTEGER NOT NULL, "start" BIGINT NOT NULL, "end" BIGINT NOT NULL,
    "private_segment_size" INTEGER, "group_segment_size" INTEGER, "workgroup_size_x" INTEGER NOT NULL,
    "workgroup_size_y" INTEGER NOT NULL, "workgroup_size_z" INTEGER NOT NULL, "grid_size_x" INTEGER NOT NULL,
    "grid_size_y" INTEGER NOT NULL, "grid_size_z" INTEGER NOT NULL, "region_name_id" INTEGER, "event_id" INTEGER,
    "extdata" JSONB DEFAULT '{}' NOT NULL);
CREATE TABLE "rocpd_memory_copy{}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "guid" TEXT DEFAULT 'g' NOT NULL, "track_id" INTEGER NOT NULL, "start" BIGINT NOT NULL,
    "end" BIGINT NOT NULL, "name_id" INTEGER NOT NULL, "dst_agent_id" INTEGER, "dst_address" INTEGER,
    "src_agent_id" INTEGER, "src_address" INTEGER, "size" INTEGER NOT NULL, "region_name_id" INTEGER,
    "event_id" INTEGER, "extdata" JSONB DEFAULT '{}' NOT NULL);
INSERT INTO "rocpd_region{}" ("track_id", "name_id", "start", "end", "event_id") SELECT
    (SELECT "id" FROM "rocpd_track{}" AS t WHERE t."agent_id" IS NULL AND t."tid" IS nullif(o."tid", 0)), "name_id",
    "start", "end", "event_id" FROM "old_region{}" AS o;
INSERT INTO "rocpd_kernel_dispatch{}" ("track_id", "kernel_id", "dispatch_id", "start", "end", "workgroup_size_x",
    "workgroup_size_y", "workgroup_size_z", "grid_size_x", "grid_size_y", "grid_size_z", "region_name_id", "event_id")
    SELECT 7, "kernel_id", "dispatch_id", "start", "end", "workgroup_size_x", "workgroup_size_y",
    "workgroup_size_z", "grid_size_x", "grid_size_y", "grid_size_z", "region_name_id", "event_id" FROM "old_dispatch{}";
INSERT INTO "rocpd_memory_copy{}" ("track_id", "start", "end", "name_id", "size", "event_id") SELECT 7,
    "start", "end", "name_id", "size", "event_id" FROM "old_copy{}";
DROP TABLE "old_dispatch{}";
DROP TABLE "old_region{}";
DROP TABLE "old_copy{}";
"#;
